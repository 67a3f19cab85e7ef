//! Functions on the elements of a value (kv-direct §3.2).
//!
//! A value is a vector of numbers, little-endian and without gaps; which numbers, every operation
//! says anew. What the built-in functions do, `v` an element and `d` its operand:
//!
//! * Integers wrap, unless the function says that it saturates. Floats do neither: they become
//!   infinite, so the saturating functions are the plain ones.
//! * Bit by bit there are integers only: with floats such a function is [`Failure::Unfit`].
//! * Floats compare as IEEE 754 says, so a NaN is equal to nothing, nor less or greater. MAX is `d`
//!   if it is greater than `v`, else `v`; MIN likewise: an operand that is NaN changes nothing, an
//!   element that is NaN stays, and of 0 and -0 the element stays.
//! * COMPARE_SWAP compares bits, those of floats too: otherwise nobody could replace a NaN.
//! * EQUAL, NOT_EQUAL, LESS and GREATER are for filters, all others are for all but filters.
//!
//! A reduction starts with its operand as `v`; each element is a `d`, and the result the next `v`.
//! So a subtraction is the operand less all elements, an exchange the last element. Sums of floats
//! are the exception, since what they come to depends on the order: the elements are added in 16
//! partial sums, the element of index `i` to that of `i mod 16`, the partial sums one to the other
//! in order, and the operand comes last. That order is the same on every machine.
//!
//! # Invariants
//! 1. What fails changes nothing: neither the value, nor what a filter has put out so far.
//! 2. A value whose length is no multiple of the element's, or other than that of a vector of
//!    operands, is [`Failure::NotAVector`], whatever the function. One without elements is a
//!    vector.

mod builtin;
mod number;
#[cfg(test)]
mod tests;

use super::operation::{Failure, Function, Lambda};

pub use crate::functions::{Operands, UserFunctions};

/// What an UPDATE makes of a scalar: of its low bits, as many as the element has. The others of the
/// result are zero.
///
/// # Errors
/// As [`UserFunctions`], and [`Failure::Unfit`].
#[inline]
pub fn scalar(lambda: &Lambda, old: u64, user: &impl UserFunctions) -> Result<u64, Failure> {
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

/// Replaces each element by what the function makes of it and the lambda's operand.
///
/// # Errors
/// As [`UserFunctions`], and [`Failure::NotAVector`] or [`Failure::Unfit`].
pub fn update_all(
    lambda: &Lambda,
    value: &mut [u8],
    user: &impl UserFunctions,
) -> Result<(), Failure> {
    check(lambda, value)?;
    match lambda.function {
        Function::Builtin(function) => builtin::update_all(function, lambda, value),
        Function::User(number) => {
            Ok(user.update(number, lambda.element, Operands::Scalar(lambda.operand), value)?)
        }
    }
}

/// Replaces each element by what the function makes of it and the operand of the same index.
///
/// # Errors
/// As [`update_all`].
pub fn update_each(
    lambda: &Lambda,
    operands: &[u8],
    value: &mut [u8],
    user: &impl UserFunctions,
) -> Result<(), Failure> {
    check(lambda, value)?;
    if operands.len() != value.len() {
        let (len, wanted) = (value.len() as u64, operands.len() as u64);
        return Err(Failure::NotAVector { len, wanted });
    }
    match lambda.function {
        Function::Builtin(function) => builtin::update_each(function, lambda, operands, value),
        Function::User(number) => {
            Ok(user.update(number, lambda.element, Operands::Each(operands), value)?)
        }
    }
}

/// What the function makes of the lambda's operand and all elements, one after the other.
///
/// # Errors
/// As [`update_all`].
pub fn reduce(lambda: &Lambda, value: &[u8], user: &impl UserFunctions) -> Result<u64, Failure> {
    check(lambda, value)?;
    match lambda.function {
        Function::Builtin(function) => builtin::reduce(function, lambda, value),
        Function::User(number) => Ok(user.reduce(number, lambda.element, lambda.operand, value)?),
    }
}

/// Appends those elements to `out` of which the function says so.
///
/// # Errors
/// As [`update_all`].
pub fn filter(
    lambda: &Lambda,
    value: &[u8],
    out: &mut Vec<u8>,
    user: &impl UserFunctions,
) -> Result<(), Failure> {
    check(lambda, value)?;
    match lambda.function {
        Function::Builtin(function) => builtin::filter(function, lambda, value, out),
        Function::User(number) => {
            Ok(user.filter(number, lambda.element, lambda.operand, value, out)?)
        }
    }
}

/// Whether a value has elements of the lambda's size.
fn check(lambda: &Lambda, value: &[u8]) -> Result<(), Failure> {
    match value.len() % lambda.element.bytes() {
        0 => Ok(()),
        _ => {
            let wanted = lambda.element.bytes() as u64;
            Err(Failure::NotAVector { len: value.len() as u64, wanted })
        }
    }
}
