//! Functions that were written by hand, good and bad ones.

use std::sync::Arc;

use loch_engines::EngineError;
use loch_engines::functions::{Element, Function, Lambda};
use loch_engines::kv_direct::vector::{Operands, UserFunctions, filter, reduce, update_all};

use super::*;

const ADD: &str = r#"(module (func (export "apply") (param i64 i64) (result i64)
    (i64.add (local.get 0) (local.get 1))))"#;
/// A module without `apply`. Its `keep` keeps odd numbers.
const KEEP_IF_ODD: &str = r#"(module (func (export "keep") (param i64 i64) (result i32)
    (i32.wrap_i64 (i64.and (local.get 0) (i64.const 1)))))"#;
/// The module that rustc makes of the example in `docs/kv-direct-functions.md`.
#[rustfmt::skip]
const SMOOTH: [u8; 87] = [
    0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00, 0x01, 0x07, 0x01, 0x60, 0x02, 0x7e, 0x7e, 0x01,
    0x7e, 0x03, 0x02, 0x01, 0x00, 0x05, 0x03, 0x01, 0x00, 0x01, 0x06, 0x08, 0x01, 0x7f, 0x01, 0x41,
    0x80, 0x80, 0x04, 0x0b, 0x07, 0x12, 0x02, 0x06, 0x6d, 0x65, 0x6d, 0x6f, 0x72, 0x79, 0x02, 0x00,
    0x05, 0x61, 0x70, 0x70, 0x6c, 0x79, 0x00, 0x00, 0x0a, 0x1d, 0x01, 0x1b, 0x01, 0x01, 0x7c, 0x20,
    0x01, 0xbf, 0x20, 0x00, 0xbf, 0x22, 0x02, 0xa1, 0x44, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xd0,
    0x3f, 0xa2, 0x20, 0x02, 0xa0, 0xbd, 0x0b,
];
/// A function that works until the value is 13, and then does this.
fn bad_at_13(body: &str) -> String {
    format!(
        r#"(module
            (memory 1)
            (global $calls (mut i64) (i64.const 0))
            (func $deep (param i64) (result i64)
                (i64.add (i64.const 1) (call $deep (local.get 0))))
            (func $apply (export "apply") (param i64 i64) (result i64)
                (global.set $calls (i64.add (global.get $calls) (i64.const 1)))
                (if (i64.eq (local.get 0) (i64.const 13)) (then {body}))
                (global.get $calls))
            (func (export "keep") (param i64 i64) (result i32)
                (i32.wrap_i64 (call $apply (local.get 0) (local.get 1)))))"#
    )
}

fn wasm(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

fn with(limits: FunctionLimits, text: &str) -> FunctionInstance {
    let mut functions = Functions::new(limits).unwrap();
    functions.register(1, &wasm(text)).unwrap();
    FunctionInstance::new(Arc::new(functions))
}

fn refused(text: &str) -> FunctionError {
    let mut functions = Functions::new(FunctionLimits::default()).unwrap();
    let refused = functions.register(9, &wasm(text)).unwrap_err();
    assert_eq!(functions.numbers().count(), 0, "what is refused is not registered");
    refused
}

#[test]
fn elements_are_widened_as_their_type_says() {
    // The sum shows whether a number was taken as negative.
    let functions = with(FunctionLimits::default(), ADD);
    let sum = |element: Element, value: &[u8], initial: u64| {
        let function = Function::User(1);
        let lambda = Lambda { function, element, operand: initial, second: 0 };
        reduce(&lambda, value, &functions)
    };
    assert_eq!(sum(Element::U8, &[255, 255], 1), Ok(255), "it wraps where the element does");
    assert_eq!(sum(Element::I8, &[255, 255], 1), Ok(255), "-1, in eight bits");
    assert_eq!(sum(Element::U16, &[255, 0, 1, 0], 1 << 16 | 1), Ok(257), "low bits count");
    let big = r#"(module (func (export "apply") (param i64 i64) (result i64)
        (i64.extend_i32_u (i64.lt_s (local.get 0) (local.get 1)))))"#;
    let functions = with(FunctionLimits::default(), big);
    for element in Element::ALL {
        let mut value = vec![0xff; element.bytes()];
        functions.update(1, element, Operands::Scalar(0), &mut value).unwrap();
        let is_negative =
            matches!(element, Element::I8 | Element::I16 | Element::I32) || element.bytes() == 8;
        assert_eq!(value[0], u8::from(is_negative), "{element:?}");
        let operands = vec![2; value.len()];
        functions.update(1, element, Operands::Each(&operands), &mut value).unwrap();
        assert_eq!(value[0], 1, "{element:?}: each has its operand");
    }
}

#[test]
fn floats_are_their_bits() {
    let half = r#"(module (func (export "apply") (param i64 i64) (result i64)
        (i64.reinterpret_f64 (f64.mul
            (f64.reinterpret_i64 (local.get 0)) (f64.reinterpret_i64 (local.get 1))))))"#;
    let functions = with(FunctionLimits::default(), half);
    let bytes = |floats: [f64; 3]| floats.map(f64::to_le_bytes).as_flattened().to_vec();
    let mut value = bytes([1.0, -3.0, f64::INFINITY]);
    functions.update(1, Element::F64, Operands::Scalar(0.5f64.to_bits()), &mut value).unwrap();
    assert_eq!(value, bytes([0.5, -1.5, f64::INFINITY]));
    // Infinity times zero, and any NaN, gives the canonical NaN.
    functions.update(1, Element::F64, Operands::Scalar(0), &mut value).unwrap();
    assert_eq!(value[16..], 0x7ff8_0000_0000_0000u64.to_le_bytes());
    let mut odd = f64::from_bits(0xfff8_0000_0000_1234).to_le_bytes();
    functions.update(1, Element::F64, Operands::Scalar(0), &mut odd).unwrap();
    assert_eq!(odd, 0x7ff8_0000_0000_0000u64.to_le_bytes());
}

#[test]
fn the_example_of_the_documentation_works() {
    let mut functions = Functions::new(FunctionLimits::default()).unwrap();
    functions.register(1, &SMOOTH).unwrap();
    let functions = FunctionInstance::new(Arc::new(functions));
    let mut value = [1f64, 9.0].map(f64::to_le_bytes);
    let operand = Operands::Scalar(5f64.to_bits());
    functions.update(1, Element::F64, operand, value.as_flattened_mut()).unwrap();
    assert_eq!(value.map(f64::from_le_bytes), [2.0, 8.0]);
}

#[test]
fn a_filter_keeps_what_its_function_says() {
    let functions = with(FunctionLimits::default(), KEEP_IF_ODD);
    let lambda =
        Lambda { function: Function::User(1), element: Element::U8, operand: 0, second: 0 };
    let mut out = vec![9];
    filter(&lambda, &[1, 2, 3, 4, 255], &mut out, &functions).unwrap();
    assert_eq!(out, [9, 1, 3, 255]);
    let mut value = [1, 2];
    assert_eq!(update_all(&lambda, &mut value, &functions), Err(EngineError::UnfitFunction));
    assert_eq!(reduce(&lambda, &value, &functions), Err(EngineError::UnfitFunction));
    let functions = with(FunctionLimits::default(), ADD);
    assert_eq!(filter(&lambda, &value, &mut out, &functions), Err(EngineError::UnfitFunction));
    let other = Lambda { function: Function::User(2), ..lambda };
    assert_eq!(
        update_all(&other, &mut value, &functions),
        Err(EngineError::NoFunction { number: 2 })
    );
    assert_eq!((value, &out[..]), ([1, 2], &[9, 1, 3, 255][..]));
}

#[test]
fn a_failing_call_is_an_error_to_its_caller_and_nothing_else() {
    let wrongs = [
        ("a trap", "(unreachable)"),
        (
            "a division by zero",
            "(drop (i64.div_s (local.get 0) (i64.sub (local.get 0) (i64.const 13))))",
        ),
        ("an access beyond the memory", "(i64.store (i32.const 0x7fffffff) (local.get 0))"),
        ("an endless loop", "(loop $again (br $again))"),
        ("endless calls", "(drop (call $deep (local.get 0)))"),
        ("more memory than there is", "(drop (memory.grow (i32.const 65535)))"),
        (
            "memory, page by page",
            "(loop $again (br_if $again (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))",
        ),
        (
            "long fills",
            "(loop $again (memory.fill (i32.const 0) (i32.const 7) (i32.const 65536)) (br $again))",
        ),
    ];
    for (what, body) in wrongs {
        let functions = with(FunctionLimits::default(), &bad_at_13(body));
        let mut value = [1, 2, 3, 13, 5];
        let lambda =
            Lambda { function: Function::User(1), element: Element::U8, operand: 0, second: 0 };
        let trapped = EngineError::FunctionFailed { number: 1 };
        for _ in 0..2 {
            assert_eq!(update_all(&lambda, &mut value, &functions), Err(trapped.clone()), "{what}");
            assert_eq!(value, [1, 2, 3, 13, 5], "{what}: nothing has changed");
            assert_eq!(
                reduce(&Lambda { operand: 13, ..lambda }, &value, &functions),
                Err(trapped.clone())
            );
            let mut out = vec![7];
            assert_eq!(
                filter(&lambda, &value, &mut out, &functions),
                Err(trapped.clone()),
                "{what}"
            );
            assert_eq!(out, [7], "{what}: nor was anything put out");
        }
        // The next call finds the module as if it had just been started.
        let mut other = [0; 3];
        assert_eq!(update_all(&lambda, &mut other, &functions), Ok(()), "{what}");
        assert_eq!(other, [1, 2, 3], "{what}");
    }
}

#[test]
fn fuel_grows_with_the_vector_up_to_a_bound() {
    let limits = FunctionLimits {
        fuel: 1000,
        fuel_per_element: 10,
        fuel_max: 2000,
        ..FunctionLimits::default()
    };
    let sum = |elements: usize| {
        reduce(
            &Lambda { function: Function::User(1), element: Element::U8, operand: 0, second: 0 },
            &vec![1; elements],
            &with(limits, ADD),
        )
    };
    // An addition costs four or five units of fuel.
    assert_eq!(sum(100), Ok(100));
    assert_eq!(sum(250), Ok(250));
    assert_eq!(sum(2000), Err(EngineError::FunctionFailed { number: 1 }), "over the bound");
    let unbounded = FunctionLimits { fuel_max: u64::MAX, ..limits };
    let lambda =
        Lambda { function: Function::User(1), element: Element::U8, operand: 0, second: 0 };
    assert_eq!(reduce(&lambda, &vec![1; 2000], &with(unbounded, ADD)), Ok(2000 % 256));
}

#[test]
fn each_processor_has_its_own_memory() {
    let text = bad_at_13("(unreachable)");
    let mut functions = Functions::new(FunctionLimits::default()).unwrap();
    functions.register(1, &wasm(&text)).unwrap();
    let functions = Arc::new(functions);
    for _ in 0..2 {
        let functions = functions.clone();
        let calls = std::thread::spawn(move || {
            let instance = FunctionInstance::new(functions);
            let mut value = [0; 4];
            instance.update(1, Element::U8, Operands::Scalar(0), &mut value).unwrap();
            value
        });
        assert_eq!(calls.join().unwrap(), [1, 2, 3, 4]);
    }
}

#[test]
fn a_module_that_cannot_be_used_is_refused_when_it_is_registered() {
    let number = 9;
    assert_eq!(
        refused(r#"(module (import "env" "print" (func)) (func (export "apply")))"#),
        FunctionError::Imports { number, import: "env.print".into() }
    );
    assert_eq!(
        refused(r#"(module (func (export "aply") (param i64 i64) (result i64) local.get 0))"#),
        FunctionError::NoExport { number, exports: vec!["`aply`".into()] }
    );
    assert_eq!(
        refused(r#"(module (func (export "apply") (param i32 i64) (result i64) local.get 1))"#),
        FunctionError::WrongType {
            number,
            name: "apply",
            found: "(i32, i64) -> i64".into(),
            wanted: "(i64, i64) -> i64",
        }
    );
    let error = refused(r#"(module (memory (export "keep") 1))"#).to_string();
    assert!(error.contains("`keep` as no function, wanted (i64, i64) -> i32"), "{error}");
    let pages = u64::from(FUNCTION_MEMORY_PAGES_MAX);
    let apply = r#"(func (export "apply") (param i64 i64) (result i64) local.get 0)"#;
    assert_eq!(
        refused(&format!("(module (memory {}) {apply})", pages + 1)),
        FunctionError::TooLarge { number, what: "pages of memory", wanted: pages + 1, max: pages }
    );
    let most = FUNCTION_TABLE_ELEMENTS_MAX as u64;
    let what = "elements in a table";
    assert_eq!(
        refused(&format!("(module (table {} funcref) {apply})", most + 1)),
        FunctionError::TooLarge { number, what, wanted: most + 1, max: most }
    );
    let memories = refused(&format!("(module (memory 1) (memory 1) {apply})"));
    assert!(matches!(memories, FunctionError::Invalid { .. }), "{memories}");
    let stuck = format!("(module (func $f (loop $again (br $again))) (start $f) {apply})");
    assert!(matches!(refused(&stuck), FunctionError::NoStart { .. }));
    let shared = format!("(module (memory 1 2 shared) {apply})");
    assert!(matches!(refused(&shared), FunctionError::Invalid { .. }), "no threads");
}

#[test]
fn numbers_and_sizes_are_looked_at() {
    let limits = FunctionLimits { module_bytes: 50, ..FunctionLimits::default() };
    let mut functions = Functions::new(limits).unwrap();
    let add = wasm(ADD);
    functions.register(65535, &add).unwrap();
    assert_eq!(functions.register(65535, &add), Err(FunctionError::Taken { number: 65535 }));
    let long = wasm(&bad_at_13(""));
    assert_eq!(
        functions.register(0, &long),
        Err(FunctionError::TooLong { number: 0, len: long.len(), max: 50 })
    );
    for number in 1..FUNCTIONS_MAX as u16 {
        functions.register(number, &add).unwrap();
    }
    assert_eq!(functions.register(0, &add), Err(FunctionError::TooMany { number: 0 }));
    assert!(functions.numbers().eq((1..FUNCTIONS_MAX as u16).chain([65535])));
}
