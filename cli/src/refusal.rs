//! The errors a user can act on; they end the command with exit status 2.
//!
//! Every other error ends it with 1: a fault on the way that no other words on the command line would have avoided.

use std::fmt;
use std::io::{self, ErrorKind};

/// What stands in the way, in words for the user.
#[derive(Debug)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// An error that ends the command with exit status 2.
pub fn refuse(message: impl Into<String>) -> anyhow::Error {
    Refusal(message.into()).into()
}

/// What the system said of a path that the user chose: a refusal where another path, or rights, would help.
pub fn about_path(what: impl fmt::Display, error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::NotFound
        | ErrorKind::PermissionDenied
        | ErrorKind::AlreadyExists
        | ErrorKind::NotADirectory
        | ErrorKind::IsADirectory
        | ErrorKind::InvalidInput
        | ErrorKind::InvalidFilename
        | ErrorKind::ReadOnlyFilesystem => refuse(format!("{what}: {error}")),
        _ => anyhow::Error::new(error).context(what.to_string()),
    }
}

/// The exit status of an error.
pub fn status(error: &anyhow::Error) -> u8 {
    if error.is::<Refusal>() { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn what_another_path_helps_against_is_refused() {
        let of = |error: io::Error| {
            let error = about_path("cannot create x", error);
            (status(&error), format!("{error:#}"))
        };
        let (code, text) = of(ErrorKind::NotFound.into());
        assert_eq!(code, 2);
        assert!(text.starts_with("cannot create x: "), "{text}");
        let (code, text) = of(io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!(code, 1);
        assert!(text.starts_with("cannot create x: No space"), "{text}");
        assert_eq!(of(io::Error::from_raw_os_error(libc::ENAMETOOLONG)).0, 2);
    }

    #[test]
    fn more_words_do_not_change_the_status() {
        let refused: anyhow::Result<()> = Err(refuse("no such file"));
        assert_eq!(status(&refused.context("on the way").unwrap_err()), 2);
        assert_eq!(status(&anyhow::anyhow!("broken").context("refused")), 1);
    }
}
