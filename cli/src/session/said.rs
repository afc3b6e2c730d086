//! What libbpf says, for the errors we report.

use std::fs;
use std::sync::Mutex;

use libbpf_rs::{ErrorKind, PrintLevel};

use crate::refusal::refuse;

/// The last lines libbpf printed, for error messages.
static LIBBPF_SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Characters of libbpf's words in an error message.
const SAID_MAX: usize = 400;

/// Keeps a line for [`libbpf_said`].
pub fn keep_message(_: PrintLevel, message: String) {
    if let Ok(mut said) = LIBBPF_SAID.lock() {
        said.push(message.trim_end().to_owned());
    }
}

/// The last lines in one.
pub fn libbpf_said() -> String {
    let said = LIBBPF_SAID.lock().map(|s| s.clone()).unwrap_or_default();
    let lines: Vec<&str> = said
        .iter()
        .flat_map(|m| m.lines())
        .map(|l| l.trim().trim_start_matches("libbpf: "))
        .filter(|l| {
            !l.is_empty() && !l.starts_with("processed ") && !l.starts_with("failed to load")
        })
        .collect();
    let mut text = lines[lines.len().saturating_sub(6)..].join("; ");
    if let Some((end, _)) = text.char_indices().nth(SAID_MAX) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Why the kernel did not take the program.
pub fn load_refused(error: &libbpf_rs::Error) -> anyhow::Error {
    let hint = match error.kind() {
        ErrorKind::PermissionDenied => {
            let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
            if lockdown.contains("[confidentiality]") {
                " (kernel lockdown is in mode confidentiality, which forbids BPF to read memory)"
            } else {
                " (a container's seccomp profile or a missing capability may forbid bpf())"
            }
        }
        _ => "",
    };
    refuse(format!(
        "the kernel refused the BPF program: {error}{hint}: {}",
        libbpf_said()
    ))
}
