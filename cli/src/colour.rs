//! Colours, where there is a terminal that has them and nobody objects.

use std::io::IsTerminal;

/// Whether stdout gets colours: a terminal, not TERM=dumb, and NO_COLOR unset or empty.
pub fn on_stdout() -> bool {
    std::io::stdout().is_terminal() && wanted()
}

/// Whether the environment wants colours.
pub fn wanted() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    !set("NO_COLOR") && capable()
}

/// Whether the terminal understands more than lines.
pub fn capable() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn paint(text: &str, code: u8, on: bool) -> String {
    if on {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// Red if `on`.
pub fn red(text: &str, on: bool) -> String {
    paint(text, 31, on)
}

/// Green if `on`.
pub fn green(text: &str, on: bool) -> String {
    paint(text, 32, on)
}

/// Yellow if `on`.
pub fn yellow(text: &str, on: bool) -> String {
    paint(text, 33, on)
}
