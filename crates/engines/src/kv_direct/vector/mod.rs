//! Functions on the elements of a value (kv-direct §3.2).
//!
//! A value is a vector of numbers, little-endian and without gaps; every operation says anew which
//! type of numbers. The built-in functions work as follows, with `v` an element and `d` its
//! operand:
//!
//! * Integers wrap, unless the function says that it saturates. Floats do neither: they become
//!   infinite, so for floats the saturating functions are the plain ones.
//! * Bitwise functions are for integers only: with floats such a function is
//!   [`EngineError::UnfitFunction`].
//! * Floats compare as IEEE 754 says, so a NaN is neither equal to, less than nor greater than any
//!   number. MAX is `d` if it is greater than `v`, otherwise `v`; MIN likewise. An operand that is
//!   NaN changes nothing, an element that is NaN stays, and of 0 and -0 the element stays.
//! * COMPARE_SWAP compares bits, also of floats: otherwise no operation could replace a NaN.
//! * EQUAL, NOT_EQUAL, LESS and GREATER are only for filters; all other functions are for all
//!   operations but filters.
//!
//! A reduction starts with its operand as `v`. Each element is a `d`, and the result is the next
//! `v`. So a subtraction gives the operand minus all elements, and an exchange gives the last
//! element. Sums of floats are the exception, since their result depends on the order: the elements
//! are added in 16 partial sums, the element of index `i` to the sum `i mod 16`; the partial sums
//! are then added one after the other, and the operand comes last. That order is the same on every
//! machine.
//!
//! # Invariants
//! 1. A failed operation changes nothing: neither the value, nor what a filter has put out so far.
//! 2. A value is [`EngineError::NotAVector`], whatever the function, if its length is not a
//!    multiple of the element's, or differs from the length of a vector of operands. A value
//!    without elements is a vector.

mod builtin;
mod number;
#[cfg(test)]
mod tests;

use crate::error::EngineError;
use crate::functions::{Function, Lambda};

pub use crate::functions::{Operands, UserFunctions};

/// The result of an UPDATE of a scalar. It uses the low bits of the scalar, as many as the element
/// has. The other bits of the result are zero.
///
/// # Errors
/// As [`UserFunctions`], and [`EngineError::UnfitFunction`].
#[inline]
pub fn scalar(lambda: &Lambda, old: u64, user: &impl UserFunctions) -> Result<u64, EngineError> {
    match lambda.function {
        Function::Builtin(function) => builtin::scalar(function, lambda, old),
        Function::User(number) => {
            let mut value = old.to_le_bytes();
            let len = lambda.element.bytes();
            let operands = Operands::Scalar(lambda.operand);
            user.update(number, lambda.element, operands, &mut value[..len])?;
            value[len..].fill(0);
            Ok(u64::from_le_bytes(value))
        }
    }
}

/// Replaces each element by the function's result for it and the lambda's operand.
///
/// # Errors
/// As [`UserFunctions`], and [`EngineError::NotAVector`] or [`EngineError::UnfitFunction`].
pub fn update_all(
    lambda: &Lambda,
    value: &mut [u8],
    user: &impl UserFunctions,
) -> Result<(), EngineError> {
    check(lambda, value)?;
    match lambda.function {
        Function::Builtin(function) => builtin::update_all(function, lambda, value),
        Function::User(number) => {
            Ok(user.update(number, lambda.element, Operands::Scalar(lambda.operand), value)?)
        }
    }
}

/// Replaces each element by the function's result for it and the operand of the same index.
///
/// # Errors
/// As [`update_all`].
pub fn update_each(
    lambda: &Lambda,
    operands: &[u8],
    value: &mut [u8],
    user: &impl UserFunctions,
) -> Result<(), EngineError> {
    check(lambda, value)?;
    if operands.len() != value.len() {
        let (len, wanted) = (value.len() as u64, operands.len() as u64);
        return Err(EngineError::NotAVector { len, wanted });
    }
    match lambda.function {
        Function::Builtin(function) => builtin::update_each(function, lambda, operands, value),
        Function::User(number) => {
            Ok(user.update(number, lambda.element, Operands::Each(operands), value)?)
        }
    }
}

/// The function's result over the lambda's operand and all elements, one after the other.
///
/// # Errors
/// As [`update_all`].
pub fn reduce(
    lambda: &Lambda,
    value: &[u8],
    user: &impl UserFunctions,
) -> Result<u64, EngineError> {
    check(lambda, value)?;
    match lambda.function {
        Function::Builtin(function) => builtin::reduce(function, lambda, value),
        Function::User(number) => Ok(user.reduce(number, lambda.element, lambda.operand, value)?),
    }
}

/// Appends to `out` those elements for which the function says yes.
///
/// # Errors
/// As [`update_all`].
pub fn filter(
    lambda: &Lambda,
    value: &[u8],
    out: &mut Vec<u8>,
    user: &impl UserFunctions,
) -> Result<(), EngineError> {
    check(lambda, value)?;
    match lambda.function {
        Function::Builtin(function) => builtin::filter(function, lambda, value, out),
        Function::User(number) => {
            Ok(user.filter(number, lambda.element, lambda.operand, value, out)?)
        }
    }
}

/// Whether a value has elements of the lambda's size.
fn check(lambda: &Lambda, value: &[u8]) -> Result<(), EngineError> {
    match value.len() % lambda.element.bytes() {
        0 => Ok(()),
        _ => {
            let wanted = lambda.element.bytes() as u64;
            Err(EngineError::NotAVector { len: value.len() as u64, wanted })
        }
    }
}
