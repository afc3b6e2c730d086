#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| parcagpu_fuzz_targets::recording::report(data));
