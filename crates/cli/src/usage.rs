//! What clap's errors leave unsaid.

use std::error::Error as _;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::Error;
use clap::error::{ContextKind, ContextValue};

/// An error about an argument that is no number also says how numbers are written. Clap names the
/// argument, and the limits of an option only if the argument is a number.
pub fn with_way_out(mut error: Error) -> Error {
    if let Some(way_out) = way_out(&error) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![way_out.into()]));
    }
    error
}

fn way_out(error: &Error) -> Option<&'static str> {
    let source = error.source()?;
    if source.is::<ParseFloatError>() {
        return Some("write a number, such as 0.5");
    }
    match source.downcast_ref::<ParseIntError>()?.kind() {
        IntErrorKind::PosOverflow => Some("numbers go up to 18446744073709551615"),
        _ => Some("write a whole number, such as 16"),
    }
}
