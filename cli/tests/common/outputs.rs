//! Outputs of `report`, and as much of their readers as it takes to add up what they say.

use std::io::Read;

use parcagpu_cli::recording::model::Recording;
use parcagpu_cli::report::{Format, write};
use serde_json::Value;

use super::protobuf::{all, field, packed};

/// The output of this format.
pub fn made(rec: &Recording, format: Format) -> Vec<u8> {
    let mut out = Vec::new();
    write(rec, format, 0, &mut out).unwrap();
    out
}

/// One that is text.
pub fn text(rec: &Recording, format: Format) -> String {
    String::from_utf8(made(rec, format)).unwrap()
}

/// The profile, unpacked.
pub fn pprof(rec: &Recording) -> Vec<u8> {
    let mut profile = Vec::new();
    flate2::read::GzDecoder::new(&made(rec, Format::Pprof)[..])
        .read_to_end(&mut profile)
        .unwrap();
    profile
}

/// Sum of each value over all samples of a profile.
pub fn pprof_sums(rec: &Recording) -> [u128; 3] {
    let mut sums = [0; 3];
    for sample in all(&pprof(rec), 2) {
        let values = packed(field(sample.bytes(), 2).unwrap().bytes());
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += u128::from(value);
        }
    }
    sums
}

/// The data beside the page.
pub fn page_data(html: &str) -> Value {
    let from = html.split("id=\"data\">").nth(1).unwrap();
    serde_json::from_str(from.split("</script>").next().unwrap()).unwrap()
}

/// Slices of the page's timeline: (kind of lane, start in it, duration).
pub fn page_slices(html: &str) -> Vec<(String, u64, Option<u64>)> {
    use base64::Engine;
    let data = page_data(html);
    let from = html.split("id=\"items\">").nth(1).unwrap();
    let packed_text = from.split("</script>").next().unwrap();
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(packed_text)
        .unwrap();
    let numbers = packed(&bytes);
    let mut numbers = numbers.chunks_exact(4);
    let mut out = Vec::new();
    for lane in data["timeline"]["lanes"].as_array().unwrap() {
        let mut start = 0;
        for _ in 0..lane["n"].as_u64().unwrap() {
            let slice = numbers.next().unwrap();
            start += slice[0];
            let kind = lane["kind"].as_str().unwrap().to_owned();
            out.push((kind, start, slice[1].checked_sub(1)));
        }
    }
    assert!(numbers.next().is_none());
    out
}
