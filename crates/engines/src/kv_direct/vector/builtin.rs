//! The functions that every processor has.
//!
//! Each function is compiled for each element type for which it is defined, so that its loop has no
//! decisions and the compiler makes vector instructions of it. An FPGA gets the same from
//! duplicating a function (kv-direct §3.2). Functions that look only at bits are compiled for
//! unsigned elements.

use std::ops::{BitAnd, BitOr, BitXor};

use super::number::Number;
use crate::error::EngineError;
use crate::functions::{Builtin, Element, Lambda};

/// Numbers that a reduction processes at a time, if it may choose the order.
const LANES: usize = 16;

/// The work that is done with a function, once the function is known.
trait Work {
    type Output;

    /// Does the work.
    fn run<T: Number>(self, function: impl Fn(T, T) -> T + Copy) -> Self::Output;

    /// Does the work with a function whose result over several operands does not depend on their
    /// order, nor on repetitions of an operand, except for the signs of zeros.
    fn run_in_any_order<T: Number>(self, function: impl Fn(T, T) -> T + Copy) -> Self::Output
    where
        Self: Sized,
    {
        self.run(function)
    }
}

/// Does `work` with a function on elements of its kind.
#[inline(always)]
fn with<W: Work>(function: Builtin, lambda: &Lambda, work: W) -> Result<W::Output, EngineError> {
    match lambda.element {
        Element::U8 => integer::<u8, u8, W>(function, lambda, work),
        Element::U16 => integer::<u16, u16, W>(function, lambda, work),
        Element::U32 => integer::<u32, u32, W>(function, lambda, work),
        Element::U64 => integer::<u64, u64, W>(function, lambda, work),
        Element::I8 => integer::<i8, u8, W>(function, lambda, work),
        Element::I16 => integer::<i16, u16, W>(function, lambda, work),
        Element::I32 => integer::<i32, u32, W>(function, lambda, work),
        Element::I64 => integer::<i64, u64, W>(function, lambda, work),
        Element::F32 => float::<f32, u32, W>(function, lambda, work),
        Element::F64 => float::<f64, u64, W>(function, lambda, work),
    }
}

/// `T` is the element, `B` its bits.
#[inline(always)]
fn integer<T: Number, B, W: Work>(
    function: Builtin,
    lambda: &Lambda,
    work: W,
) -> Result<W::Output, EngineError>
where
    B: Number + BitAnd<Output = B> + BitOr<Output = B> + BitXor<Output = B>,
{
    Ok(match function {
        Builtin::Add => work.run(B::plus),
        Builtin::Subtract => work.run(B::minus),
        Builtin::SaturatingAdd => work.run(T::nearest_plus),
        Builtin::SaturatingSubtract => work.run(T::nearest_minus),
        Builtin::And => work.run(B::bitand),
        Builtin::Or => work.run(B::bitor),
        Builtin::Xor => work.run(B::bitxor),
        _ => return ordered::<T, B, W>(function, lambda, work),
    })
}

#[inline(always)]
fn float<T: Number, B: Number, W: Work>(
    function: Builtin,
    lambda: &Lambda,
    work: W,
) -> Result<W::Output, EngineError> {
    Ok(match function {
        Builtin::Add | Builtin::SaturatingAdd => work.run(T::plus),
        Builtin::Subtract | Builtin::SaturatingSubtract => work.run(T::minus),
        _ => return ordered::<T, B, W>(function, lambda, work),
    })
}

/// Functions that only compare and replace.
#[inline(always)]
fn ordered<T: Number, B: Number, W: Work>(
    function: Builtin,
    lambda: &Lambda,
    work: W,
) -> Result<W::Output, EngineError> {
    Ok(match function {
        Builtin::Max => work.run_in_any_order(|v: T, d: T| if d > v { d } else { v }),
        Builtin::Min => work.run_in_any_order(|v: T, d: T| if d < v { d } else { v }),
        Builtin::Exchange => work.run(|_: B, d: B| d),
        Builtin::CompareSwap => {
            let expected = B::of_word(lambda.second);
            work.run(move |v: B, d: B| if v == expected { d } else { v })
        }
        _ => return Err(EngineError::UnfitFunction),
    })
}

struct Scalar {
    value: u64,
    operand: u64,
}

impl Work for Scalar {
    type Output = u64;

    #[inline(always)]
    fn run<T: Number>(self, function: impl Fn(T, T) -> T + Copy) -> u64 {
        function(T::of_word(self.value), T::of_word(self.operand)).to_word()
    }
}

/// See [`super::scalar`].
#[inline]
pub(super) fn scalar(function: Builtin, lambda: &Lambda, old: u64) -> Result<u64, EngineError> {
    // The usual case of sequencers and counters, with one operation after another on one key.
    if function == Builtin::Add && lambda.element == Element::U64 {
        return Ok(old.wrapping_add(lambda.operand));
    }
    with(function, lambda, Scalar { value: old, operand: lambda.operand })
}

struct All<'a> {
    value: &'a mut [u8],
    operand: u64,
}

impl Work for All<'_> {
    type Output = ();

    #[inline(always)]
    fn run<T: Number>(self, function: impl Fn(T, T) -> T + Copy) {
        let operand = T::of_word(self.operand);
        for element in self.value.chunks_exact_mut(T::BYTES) {
            function(T::read(element), operand).write(element);
        }
    }
}

/// See [`super::update_all`].
pub(super) fn update_all(
    function: Builtin,
    lambda: &Lambda,
    value: &mut [u8],
) -> Result<(), EngineError> {
    with(function, lambda, All { value, operand: lambda.operand })
}

struct Each<'a> {
    value: &'a mut [u8],
    operands: &'a [u8],
}

impl Work for Each<'_> {
    type Output = ();

    #[inline(always)]
    fn run<T: Number>(self, function: impl Fn(T, T) -> T + Copy) {
        let operands = self.operands.chunks_exact(T::BYTES);
        for (element, operand) in self.value.chunks_exact_mut(T::BYTES).zip(operands) {
            function(T::read(element), T::read(operand)).write(element);
        }
    }
}

/// See [`super::update_each`].
pub(super) fn update_each(
    function: Builtin,
    lambda: &Lambda,
    operands: &[u8],
    value: &mut [u8],
) -> Result<(), EngineError> {
    with(function, lambda, Each { value, operands })
}

struct Reduce<'a> {
    value: &'a [u8],
    initial: u64,
}

impl Work for Reduce<'_> {
    type Output = u64;

    #[inline(always)]
    fn run<T: Number>(self, function: impl Fn(T, T) -> T + Copy) -> u64 {
        let elements = self.value.chunks_exact(T::BYTES).map(T::read);
        elements.fold(T::of_word(self.initial), function).to_word()
    }

    #[inline(always)]
    fn run_in_any_order<T: Number>(self, function: impl Fn(T, T) -> T + Copy) -> u64 {
        in_lanes(self.value, T::of_word(self.initial), function).to_word()
    }
}

/// Reduces `value` in [`LANES`] parts, each of which starts with `start`, and then combines the
/// parts.
#[inline(always)]
fn in_lanes<T: Number>(value: &[u8], start: T, function: impl Fn(T, T) -> T + Copy) -> T {
    let mut lanes = [start; LANES];
    let mut rounds = value.chunks_exact(LANES * T::BYTES);
    for round in &mut rounds {
        for (lane, element) in lanes.iter_mut().zip(round.chunks_exact(T::BYTES)) {
            *lane = function(*lane, T::read(element));
        }
    }
    for (lane, element) in lanes.iter_mut().zip(rounds.remainder().chunks_exact(T::BYTES)) {
        *lane = function(*lane, T::read(element));
    }
    lanes.into_iter().reduce(function).expect("there are lanes")
}

/// See [`super::reduce`].
pub(super) fn reduce(function: Builtin, lambda: &Lambda, value: &[u8]) -> Result<u64, EngineError> {
    let sums = matches!(
        function,
        Builtin::Add | Builtin::SaturatingAdd | Builtin::Subtract | Builtin::SaturatingSubtract
    );
    // Adding -0 changes no number: adding 0 would make 0 of a sum that is -0.
    let sum = match lambda.element {
        Element::F32 if sums => in_lanes(value, -0f32, f32::plus).to_word(),
        Element::F64 if sums => in_lanes(value, -0f64, f64::plus).to_word(),
        _ => return with(function, lambda, Reduce { value, initial: lambda.operand }),
    };
    with(function, lambda, Scalar { value: lambda.operand, operand: sum })
}

/// See [`super::filter`].
pub(super) fn filter(
    function: Builtin,
    lambda: &Lambda,
    value: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), EngineError> {
    match lambda.element {
        Element::U8 => filter_of::<u8>(function, lambda, value, out),
        Element::U16 => filter_of::<u16>(function, lambda, value, out),
        Element::U32 => filter_of::<u32>(function, lambda, value, out),
        Element::U64 => filter_of::<u64>(function, lambda, value, out),
        Element::I8 => filter_of::<i8>(function, lambda, value, out),
        Element::I16 => filter_of::<i16>(function, lambda, value, out),
        Element::I32 => filter_of::<i32>(function, lambda, value, out),
        Element::I64 => filter_of::<i64>(function, lambda, value, out),
        Element::F32 => filter_of::<f32>(function, lambda, value, out),
        Element::F64 => filter_of::<f64>(function, lambda, value, out),
    }
}

fn filter_of<T: Number>(
    function: Builtin,
    lambda: &Lambda,
    value: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), EngineError> {
    let operand = T::of_word(lambda.operand);
    match function {
        Builtin::Equal => keep::<T>(value, out, |v| v == operand),
        Builtin::NotEqual => keep::<T>(value, out, |v| v != operand),
        Builtin::Less => keep::<T>(value, out, |v| v < operand),
        Builtin::Greater => keep::<T>(value, out, |v| v > operand),
        _ => return Err(EngineError::UnfitFunction),
    }
    Ok(())
}

/// Appends the wanted elements. Every element is written, and the next one overwrites it if it is
/// not wanted: the processor cannot predict which elements are wanted, and a wrong guess costs more
/// than a write.
#[inline(always)]
fn keep<T: Number>(value: &[u8], out: &mut Vec<u8>, is_wanted: impl Fn(T) -> bool) {
    let mut end = out.len();
    out.resize(end + value.len(), 0);
    for element in value.chunks_exact(T::BYTES) {
        let element = T::read(element);
        element.write(&mut out[end..end + T::BYTES]);
        end += T::BYTES * usize::from(is_wanted(element));
    }
    out.truncate(end);
}
