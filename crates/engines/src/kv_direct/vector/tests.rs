//! The functions, compared with the same functions written for one element at a time.

use std::cell::Cell;

use proptest::prelude::*;

use super::*;
use crate::functions::Builtin;
use crate::functions::{Element, FunctionFailure};

const UPDATES: [Builtin; 11] = [
    Builtin::Add,
    Builtin::SaturatingAdd,
    Builtin::Subtract,
    Builtin::SaturatingSubtract,
    Builtin::Max,
    Builtin::Min,
    Builtin::And,
    Builtin::Or,
    Builtin::Xor,
    Builtin::Exchange,
    Builtin::CompareSwap,
];
const FILTERS: [Builtin; 4] = [Builtin::Equal, Builtin::NotEqual, Builtin::Less, Builtin::Greater];

fn lambda(function: Builtin, element: Element, operand: u64, second: u64) -> Lambda {
    Lambda { function: Function::Builtin(function), element, operand, second }
}

fn is_float(element: Element) -> bool {
    matches!(element, Element::F32 | Element::F64)
}

/// Bitwise functions are for integers only.
fn is_unfit(lambda: &Lambda) -> bool {
    let bitwise = [Builtin::And, Builtin::Or, Builtin::Xor].map(Function::Builtin);
    bitwise.contains(&lambda.function) && is_float(lambda.element)
}

fn mask(element: Element) -> u64 {
    u64::MAX >> (64 - 8 * element.bytes())
}

/// Bits as a number: of an integer exactly, of a float as a double.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Wide {
    Integer(i128),
    Float(f64),
}

fn wide(element: Element, bits: u64) -> Wide {
    let shift = 64 - 8 * element.bytes() as u32;
    match element {
        Element::U8 | Element::U16 | Element::U32 | Element::U64 => Wide::Integer(bits.into()),
        Element::F32 => Wide::Float(f32::from_bits(bits as u32).into()),
        Element::F64 => Wide::Float(f64::from_bits(bits)),
        _ => Wide::Integer(((bits << shift) as i64 >> shift).into()),
    }
}

/// The least and the greatest integer.
fn ends(element: Element) -> (i128, i128) {
    match wide(element, mask(element)) {
        Wide::Integer(-1) => (-(i128::from(mask(element) / 2)) - 1, (mask(element) / 2).into()),
        _ => (0, mask(element).into()),
    }
}

/// The expected result of `function` for an element and its operand, both as bits.
fn expected(lambda: &Lambda, v: u64, d: u64) -> Option<u64> {
    let Function::Builtin(function) = lambda.function else { return None };
    let (mask, element) = (mask(lambda.element), lambda.element);
    let (a, b) = (wide(element, v), wide(element, d));
    let float = |sum: fn(f64, f64) -> f64, single: fn(f32, f32) -> f32| match element {
        Element::F32 => {
            u64::from(single(f32::from_bits(v as u32), f32::from_bits(d as u32)).to_bits())
        }
        _ => sum(f64::from_bits(v), f64::from_bits(d)).to_bits(),
    };
    let saturated = |sum: i128| {
        let (least, greatest) = ends(element);
        sum.clamp(least, greatest) as u64 & mask
    };
    Some(match (function, a, b) {
        (Builtin::Add | Builtin::SaturatingAdd, Wide::Float(_), _) => {
            float(|a, b| a + b, |a, b| a + b)
        }
        (Builtin::Subtract | Builtin::SaturatingSubtract, Wide::Float(_), _) => {
            float(|a, b| a - b, |a, b| a - b)
        }
        (Builtin::Add, ..) => v.wrapping_add(d) & mask,
        (Builtin::Subtract, ..) => v.wrapping_sub(d) & mask,
        (Builtin::SaturatingAdd, Wide::Integer(a), Wide::Integer(b)) => saturated(a + b),
        (Builtin::SaturatingSubtract, Wide::Integer(a), Wide::Integer(b)) => saturated(a - b),
        (Builtin::Max, ..) => [v, d][usize::from(b > a)],
        (Builtin::Min, ..) => [v, d][usize::from(b < a)],
        (Builtin::And | Builtin::Or | Builtin::Xor, Wide::Float(_), _) => return None,
        (Builtin::And, ..) => v & d,
        (Builtin::Or, ..) => v | d,
        (Builtin::Xor, ..) => v ^ d,
        (Builtin::Exchange, ..) => d,
        (Builtin::CompareSwap, ..) => [v, d][usize::from(v == lambda.second & mask)],
        _ => return None,
    })
}

fn is_kept(function: Builtin, element: Element, v: u64, d: u64) -> bool {
    let (v, d) = (wide(element, v), wide(element, d));
    match function {
        Builtin::Equal => v == d,
        Builtin::NotEqual => v != d,
        Builtin::Less => v < d,
        _ => v > d,
    }
}

fn bytes_of(element: Element, words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()[..element.bytes()].to_vec()).collect()
}

fn words_of(element: Element, bytes: &[u8]) -> Vec<u64> {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    bytes.chunks_exact(element.bytes()).map(word).collect()
}

/// The machine decides which NaN comes out of a calculation.
fn canonical(element: Element, bits: u64) -> u64 {
    match wide(element, bits) {
        Wide::Float(float) if float.is_nan() => mask(element),
        _ => bits,
    }
}

fn canonicals(element: Element, words: &[u64]) -> Vec<u64> {
    words.iter().map(|word| canonical(element, *word)).collect()
}

/// Numbers at edges, as often as not; NaNs, zeros and infinities of both kinds of floats.
fn words() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => any::<u64>(),
        1 => prop::sample::select(&[0, 1, 2, u64::MAX, 1 << 63, (1 << 63) - 1, 0x7f, 0x80]),
        1 => prop::sample::select(&[0x8000_0000, 0x7fff_ffff, 0x7fff, 0x8000, 0xffff_ffff]),
        1 => prop::sample::select(&[0.0, -0.0, 1.5, -2.0, f64::NAN, f64::INFINITY])
            .prop_map(f64::to_bits),
        1 => prop::sample::select(&[-0.0, 1.5, -2.0, f32::NAN, f32::INFINITY])
            .prop_map(|float| f32::to_bits(float).into()),
    ]
}

proptest! {
    #[test]
    fn updates_are_those_of_each_element(
        element in prop::sample::select(&Element::ALL),
        function in prop::sample::select(&UPDATES),
        pairs in prop::collection::vec((words(), words()), 0..70),
        (operand, second) in (words(), words()),
        offset in 0usize..8,
    ) {
        let lambda = lambda(function, element, operand, second);
        let mask = mask(element);
        let olds: Vec<u64> = pairs.iter().map(|(v, _)| v & mask).collect();
        let operands: Vec<u64> = pairs.iter().map(|(_, d)| d & mask).collect();
        // Elements start at any offset.
        let mut value = vec![0; offset];
        value.extend(bytes_of(element, &olds));
        let mut each = value.clone();
        let all = update_all(&lambda, &mut value[offset..], &());
        let done = update_each(&lambda, &bytes_of(element, &operands), &mut each[offset..], &());
        prop_assert_eq!(&all, &done);
        let want = |d: &dyn Fn(usize) -> u64| -> Option<Vec<u64>> {
            olds.iter().enumerate().map(|(i, v)| expected(&lambda, *v, d(i))).collect()
        };
        if is_unfit(&lambda) {
            prop_assert_eq!(all, Err(EngineError::UnfitFunction));
            prop_assert_eq!(words_of(element, &value[offset..]), olds);
            return Ok(());
        }
        prop_assert_eq!(all, Ok(()));
        let all = canonicals(element, &words_of(element, &value[offset..]));
        let each = canonicals(element, &words_of(element, &each[offset..]));
        let want_all = want(&|_| operand & mask).unwrap();
        let want_each = want(&|index| operands[index]).unwrap();
        prop_assert_eq!(&all, &canonicals(element, &want_all));
        prop_assert_eq!(&each, &canonicals(element, &want_each));
        for (old, new) in olds.iter().zip(&all) {
            // Bits above the element have no meaning.
            let one = scalar(&lambda, old | !mask, &()).unwrap();
            prop_assert_eq!(canonical(element, one), *new);
        }
    }

    #[test]
    fn reductions_take_all_elements_in_order(
        element in prop::sample::select(&Element::ALL),
        function in prop::sample::select(&UPDATES),
        elements in prop::collection::vec(words(), 0..70),
        (initial, second) in (words(), words()),
    ) {
        let lambda = lambda(function, element, initial, second);
        let mask = mask(element);
        let elements: Vec<u64> = elements.iter().map(|v| v & mask).collect();
        let reduced = reduce(&lambda, &bytes_of(element, &elements), &());
        if is_unfit(&lambda) {
            // The same holds without any elements.
            prop_assert_eq!(reduced, Err(EngineError::UnfitFunction));
            return Ok(());
        }
        let sums = function as u8 <= Builtin::SaturatingSubtract as u8;
        if is_float(element) && sums {
            let add = Lambda { function: Function::Builtin(Builtin::Add), ..lambda };
            let zero = if element == Element::F32 { 1 << 31 } else { 1 << 63 };
            let lane = |lane: usize| {
                let own = elements.iter().skip(lane).step_by(16);
                own.fold(zero, |v, d| expected(&add, v, *d).unwrap())
            };
            let sum = (0..16).map(lane).reduce(|v, d| expected(&add, v, d).unwrap()).unwrap();
            let want = expected(&lambda, initial & mask, sum).unwrap();
            prop_assert_eq!(canonical(element, reduced.unwrap()), canonical(element, want));
        } else {
            let all = elements.iter().try_fold(initial & mask, |v, d| expected(&lambda, v, *d));
            let (got, want) = (reduced.unwrap(), all.unwrap());
            let zeros = wide(element, got) == wide(element, want);
            prop_assert!(zeros || got == want, "{got:#x} is not {want:#x}");
        }
    }

    #[test]
    fn filters_keep_the_order(
        element in prop::sample::select(&Element::ALL),
        function in prop::sample::select(&FILTERS),
        elements in prop::collection::vec(words(), 0..70),
        operand in words(),
    ) {
        let mask = mask(element);
        let lambda = lambda(function, element, operand, 0);
        let elements: Vec<u64> = elements.iter().map(|v| v & mask).collect();
        let kept = |v: &&u64| is_kept(function, element, **v, operand & mask);
        let want: Vec<u64> = elements.iter().filter(kept).copied().collect();
        let mut out = b"before".to_vec();
        prop_assert_eq!(filter(&lambda, &bytes_of(element, &elements), &mut out, &()), Ok(()));
        prop_assert_eq!(&out[..6], b"before");
        prop_assert_eq!(words_of(element, &out[6..]), want);
    }
}

#[test]
fn floats_that_are_no_numbers_have_their_rules() {
    let bits = |floats: &[f64]| floats.iter().flat_map(|f| f.to_le_bytes()).collect::<Vec<u8>>();
    let with = |function, operand: f64| lambda(function, Element::F64, operand.to_bits(), 0);
    let mut value = bits(&[f64::NAN, 1.0, 3.0]);
    update_all(&with(Builtin::Max, 2.0), &mut value, &()).unwrap();
    assert_eq!(value, bits(&[f64::NAN, 2.0, 3.0]));
    update_all(&with(Builtin::Min, f64::NAN), &mut value, &()).unwrap();
    assert_eq!(value, bits(&[f64::NAN, 2.0, 3.0]), "an operand that is NaN changes nothing");
    let most = reduce(&with(Builtin::Max, f64::NEG_INFINITY), &value, &());
    assert_eq!(most, Ok(3f64.to_bits()), "nor does an element in a reduction");
    let mut out = Vec::new();
    filter(&with(Builtin::NotEqual, f64::NAN), &value, &mut out, &()).unwrap();
    assert_eq!(out, value, "nothing is equal to NaN, nor NaN to itself");
    let expects_nan = Lambda { second: f64::NAN.to_bits(), ..with(Builtin::CompareSwap, 0.0) };
    update_all(&expects_nan, &mut value, &()).unwrap();
    assert_eq!(value, bits(&[0.0, 2.0, 3.0]), "but it can be found and replaced");
    let none = reduce(&with(Builtin::Add, -0.0), &[], &());
    assert_eq!(none, Ok((-0f64).to_bits()), "a sum without elements is what it started with");
}

#[test]
fn what_is_no_vector_is_refused_whatever_the_function() {
    for element in Element::ALL.into_iter().filter(|element| element.bytes() > 1) {
        for function in [Function::Builtin(Builtin::Add), Function::User(1)] {
            let lambda = Lambda { function, element, operand: 1, second: 0 };
            let mut value = vec![1; element.bytes() + 1];
            let (len, wanted) = (value.len() as u64, element.bytes() as u64);
            let refused = EngineError::NotAVector { len, wanted };
            assert_eq!(update_all(&lambda, &mut value, &()), Err(refused.clone()));
            assert_eq!(update_each(&lambda, &value.clone(), &mut value, &()), Err(refused.clone()));
            assert_eq!(reduce(&lambda, &value, &()), Err(refused.clone()));
            assert_eq!(filter(&lambda, &value, &mut Vec::new(), &()), Err(refused.clone()));
            let mut two = vec![1; element.bytes() * 2];
            let len = two.len() as u64;
            let short = update_each(&lambda, &value[1..], &mut two, &());
            assert_eq!(short, Err(EngineError::NotAVector { len, wanted }));
            assert_eq!((value, two), (vec![1; wanted as usize + 1], vec![1; len as usize]));
        }
    }
}

#[test]
fn filters_are_no_updates_and_updates_no_filters() {
    let mut value = vec![7; 16];
    for element in Element::ALL {
        for function in FILTERS {
            let lambda = lambda(function, element, 1, 1);
            assert_eq!(update_all(&lambda, &mut value, &()), Err(EngineError::UnfitFunction));
            assert_eq!(
                update_each(&lambda, &[7; 16], &mut value, &()),
                Err(EngineError::UnfitFunction)
            );
            assert_eq!(reduce(&lambda, &value, &()), Err(EngineError::UnfitFunction));
            assert_eq!(scalar(&lambda, 7, &()), Err(EngineError::UnfitFunction));
        }
        for function in UPDATES {
            let mut out = vec![1];
            let lambda = lambda(function, element, 1, 1);
            assert_eq!(filter(&lambda, &value, &mut out, &()), Err(EngineError::UnfitFunction));
            assert_eq!(out, [1]);
        }
    }
    assert_eq!(value, [7; 16]);
}

#[test]
fn functions_of_users_are_asked_by_their_numbers() {
    /// Records the calls.
    #[derive(Default)]
    struct Noted(Cell<Option<(u16, usize)>>);
    impl UserFunctions for Noted {
        fn update(
            &self,
            number: u16,
            _: Element,
            operands: Operands<'_>,
            value: &mut [u8],
        ) -> Result<(), FunctionFailure> {
            self.0.set(Some((number, value.len())));
            match operands {
                Operands::Scalar(operand) => value.fill(operand as u8),
                Operands::Each(operands) => value.copy_from_slice(operands),
            }
            Ok(())
        }
        fn reduce(
            &self,
            number: u16,
            _: Element,
            initial: u64,
            v: &[u8],
        ) -> Result<u64, FunctionFailure> {
            self.0.set(Some((number, v.len())));
            Ok(initial + 1)
        }
        fn filter(
            &self,
            number: u16,
            _: Element,
            _: u64,
            value: &[u8],
            out: &mut Vec<u8>,
        ) -> Result<(), FunctionFailure> {
            self.0.set(Some((number, value.len())));
            out.extend_from_slice(value);
            Ok(())
        }
    }
    let lambda =
        Lambda { function: Function::User(9), element: Element::U16, operand: 5, second: 0 };
    let (noted, mut value, mut out) = (Noted::default(), [0; 4], Vec::new());
    assert_eq!(scalar(&lambda, u64::MAX, &noted), Ok(0x0505));
    assert_eq!(noted.0.take(), Some((9, 2)));
    assert_eq!(update_all(&lambda, &mut value, &noted), Ok(()));
    assert_eq!((value, noted.0.take()), ([5; 4], Some((9, 4))));
    assert_eq!(update_each(&lambda, b"1234", &mut value, &noted), Ok(()));
    assert_eq!((&value, noted.0.take()), (b"1234", Some((9, 4))));
    assert_eq!((reduce(&lambda, &value, &noted), noted.0.take()), (Ok(6), Some((9, 4))));
    assert_eq!(filter(&lambda, &value, &mut out, &noted), Ok(()));
    assert_eq!((&out[..], noted.0.take()), (&b"1234"[..], Some((9, 4))));
    assert_eq!(scalar(&lambda, 0, &()), Err(EngineError::NoFunction { number: 9 }));
    assert_eq!(update_all(&lambda, &mut value, &()), Err(EngineError::NoFunction { number: 9 }));
    assert_eq!(
        update_each(&lambda, b"4321", &mut value, &()),
        Err(EngineError::NoFunction { number: 9 })
    );
    assert_eq!(reduce(&lambda, &value, &()), Err(EngineError::NoFunction { number: 9 }));
    assert_eq!(filter(&lambda, &value, &mut out, &()), Err(EngineError::NoFunction { number: 9 }));
    assert_eq!((&value, &out[..]), (b"1234", &b"1234"[..]));
}
