//! Functions of users: any bytes are a module that can be called under its limits, or are refused;
//! what a module does ends, and if it fails it has changed nothing.

mod module;

use std::sync::Arc;

use loch::{FunctionInstance, FunctionLimits, Functions};
use loch_engines::EngineError;
use loch_engines::functions::{Element, Function, Lambda};
use loch_engines::kv_direct::vector::{filter, reduce, scalar, update_all, update_each};

use crate::input::Input;

const NUMBER: u16 = 3;
/// Little of everything, so that its end is soon reached.
const LIMITS: FunctionLimits = FunctionLimits {
    module_bytes: 4 << 10,
    memory_pages: 4,
    fuel: 20_000,
    fuel_per_element: 1_000,
    fuel_max: 40_000,
};

/// Bytes as a module, or as what one does; and a vector for it.
///
/// # Panics
/// If a call that failed changed something, or a function is there that was refused.
pub fn functions(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let is_raw = input.byte().is_multiple_of(4);
    let element = input.pick(&Element::ALL);
    let value = input.take(64);
    let value = &value[..value.len() / element.bytes() * element.bytes()];
    let operand = input.u64();
    let module = if is_raw { input.rest().to_vec() } else { module::made_of(input) };
    let mut functions = Functions::new(LIMITS).expect("there is a compiler for this machine");
    let registered = functions.register(NUMBER, &module);
    assert!(
        is_raw || !matches!(registered, Err(loch::FunctionError::Invalid { .. })),
        "{registered:?}"
    );
    assert_eq!(functions.numbers().count(), usize::from(registered.is_ok()));
    if let Err(error) = registered {
        assert!(error.to_string().starts_with("function 3: "), "{error}");
    }
    let functions = FunctionInstance::new(Arc::new(functions));
    let lambda = Lambda { function: Function::User(NUMBER), element, operand, second: 0 };
    // Twice: the second time finds what the first one left.
    for _ in 0..2 {
        apply(&lambda, value, &functions);
    }
}

fn apply(lambda: &Lambda, value: &[u8], functions: &FunctionInstance) {
    let mut all = value.to_vec();
    if fails(update_all(lambda, &mut all, functions)) {
        assert_eq!(all, value, "what fails changes nothing");
    }
    let mut each = value.to_vec();
    if fails(update_each(lambda, value, &mut each, functions)) {
        assert_eq!(each, value, "what fails changes nothing");
    }
    let beyond = u64::MAX.checked_shl(8 * lambda.element.bytes() as u32).unwrap_or(0);
    for result in [reduce(lambda, value, functions), scalar(lambda, lambda.operand, functions)] {
        if let Ok(result) = result {
            assert_eq!(result & beyond, 0, "a result is an element");
        }
        fails(result);
    }
    let mut out = vec![7; 3];
    let failed = fails(filter(lambda, value, &mut out, functions));
    assert!(out.len() <= 3 + value.len() && out[..3] == [7; 3]);
    assert!(!failed || out.len() == 3, "what fails puts nothing out");
}

/// Whether something failed, in a way that it may.
fn fails<T>(result: Result<T, EngineError>) -> bool {
    match result {
        Ok(_) => false,
        Err(
            EngineError::NoFunction { number: NUMBER }
            | EngineError::FunctionFailed { number: NUMBER }
            | EngineError::UnfitFunction,
        ) => true,
        Err(failure) => panic!("{failure:?} is no failure of a function"),
    }
}
