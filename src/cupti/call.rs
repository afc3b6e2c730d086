//! Calls of CUPTI, and what is told of those that fail.
//!
//! None is made once CUPTI has ended itself in the process, whatever thread has got hold of its functions before.

use std::fmt;

use super::result;
use super::sys::{CUPTI_SUCCESS, CUptiResult};
use crate::errors;
use crate::session::{self, Session};

/// A CUPTI call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CuptiError {
    /// The function.
    pub function: &'static str,
    /// Its result; [`NOT_CALLED`] where there is none.
    pub code: CUptiResult,
}

/// No code of CUPTI's: the call was not made, since CUPTI has ended itself, which was told.
pub const NOT_CALLED: CUptiResult = CUptiResult::MAX;

impl CuptiError {
    /// Tells it, if it is CUPTI's.
    pub fn tell(self, component: &str) {
        self.tell_as(component, &self.to_string());
    }

    /// The same in other words.
    pub fn tell_as(self, component: &str, message: &str) {
        if self.code != NOT_CALLED {
            errors::report(self.code as i32, component, message);
        }
    }
}

impl fmt::Display for CuptiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.code == NOT_CALLED {
            return write!(f, "{} is not called: CUPTI has ended itself", self.function);
        }
        let name = result::name(self.code);
        write!(f, "{} failed: {name} ({})", self.function, self.code)
    }
}

impl std::error::Error for CuptiError {}

/// Makes a call, unless CUPTI has ended itself: whoever got hold of it before that calls it no more either.
pub fn call(function: &'static str, act: impl FnOnce() -> CUptiResult) -> Result<(), CuptiError> {
    let code = match session::get().is_some_and(Session::is_lost) {
        true => NOT_CALLED,
        false => act(),
    };
    check(function, code)
}

/// A result code as a result.
pub fn check(function: &'static str, code: CUptiResult) -> Result<(), CuptiError> {
    if code == CUPTI_SUCCESS {
        Ok(())
    } else {
        Err(CuptiError { function, code })
    }
}

#[cfg(test)]
mod tests {
    use super::CuptiError;

    #[test]
    fn an_error_names_call_code_and_meaning() {
        let error = CuptiError {
            function: "cuptiSubscribe",
            code: 39,
        };
        assert_eq!(
            error.to_string(),
            "cuptiSubscribe failed: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"
        );
    }
}
