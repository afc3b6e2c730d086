//! Why there are no PC samples, and what helps.

use crate::cupti::call::CuptiError;
use crate::cupti::sys::CUPTI_ERROR_UNKNOWN;
use crate::errors;

/// Component of all errors of PC sampling.
pub const COMPONENT: &str = "pc sampling";

/// What helps against a result code of CUPTI's.
fn cure(code: u32) -> &'static str {
    match code {
        8 => "CUPTI is short of memory for it",
        26 => "another tool has the counters of this GPU; end it first",
        27 | 14 => "this GPU, or this driver with this libcupti, cannot do it",
        33 => "the virtual GPU does not offer it; enable profiling for it in the hypervisor",
        35 => {
            "the driver lets only administrators profile; load it with \
             NVreg_RestrictProfilingToAdminUsers=0, or give the program CAP_SYS_ADMIN"
        }
        36 => "the program uses the old profiling API of CUPTI; only one of both can be used",
        40 => "the virtual GPU lets only administrators profile; ask its administrator",
        41 => "the GPU is in confidential computing mode",
        42 => "this mining GPU cannot do it",
        43 => "the GPU is divided (MIG), where it is not supported",
        44 => "the GPUs are joined (SLI), where it is not supported",
        45 => "it is not supported under WSL",
        CUPTI_ERROR_UNKNOWN => {
            "another process or tool is sampling this GPU, or has been since this program began, which ends CUPTI: \
             there are no launches and kernel times either; end the other one, then start the program again"
        }
        _ => "see the meaning of this code in CUPTI's documentation",
    }
}

/// Tells that a context is not sampled. Kernel timing goes on, unless CUPTI does not.
pub fn tell(error: CuptiError) {
    error.tell_as(
        COMPONENT,
        &format!("no PC samples: {error}: {}", cure(error.code)),
    );
}

/// Tells that PC sampling is off in the whole process, and why.
pub fn tell_off(why: &str) {
    errors::report(0, COMPONENT, &format!("no PC samples: {why}"));
}

#[cfg(test)]
mod tests {
    use super::cure;

    #[test]
    fn refusals_name_their_cure() {
        assert!(cure(35).contains("NVreg_RestrictProfilingToAdminUsers=0"));
        assert!(cure(26).contains("another tool"));
        assert!(cure(43).contains("MIG"));
        assert!(!cure(12345).is_empty());
    }
}
