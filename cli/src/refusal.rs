//! The errors a user can act on; they end the command with exit status 2.

use std::fmt;

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
