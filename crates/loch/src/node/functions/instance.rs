//! One processor's instances of the functions.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;

use loch_engines::functions::{Element, FunctionFailure, Operands, UserFunctions};
use wasmtime::{
    Extern, Instance, Module, Store, StoreLimits, StoreLimitsBuilder, TypedFunc, WasmParams,
    WasmResults,
};

use super::{FunctionError, FunctionLimits, Functions};
use crate::limits::FUNCTION_TABLE_ELEMENTS_MAX;

type Apply = TypedFunc<(i64, i64), i64>;
type Keep = TypedFunc<(i64, i64), i32>;

/// The functions of a table as one processor calls them. A function is started at its first call.
///
/// ```
/// # use loch::{FunctionInstance, FunctionLimits, Functions};
/// # use loch_engines::functions::{Element, FunctionFailure, UserFunctions};
/// let none = FunctionInstance::new(Functions::new(FunctionLimits::default())?.into());
/// assert_eq!(none.reduce(7, Element::U8, 0, b"value"), Err(FunctionFailure::Unknown(7)));
/// # Ok::<(), loch::FunctionError>(())
/// ```
pub struct FunctionInstance {
    functions: Arc<Functions>,
    started: RefCell<BTreeMap<u16, Started>>,
}

impl fmt::Debug for FunctionInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionInstance")
            .field("functions", &self.functions)
            .finish_non_exhaustive()
    }
}

impl FunctionInstance {
    /// An instance for one processor.
    pub fn new(functions: Arc<Functions>) -> Self {
        Self { functions, started: RefCell::default() }
    }

    /// Calls a function on so many elements. A trap in `call` counts as the function's.
    fn call<T>(
        &self,
        number: u16,
        elements: usize,
        work: impl FnOnce(&mut Started) -> Result<T, CallError>,
    ) -> Result<T, FunctionFailure> {
        let Functions { limits, modules, .. } = &*self.functions;
        let module = modules.get(&number).ok_or(FunctionFailure::Unknown(number))?;
        let mut all = self.started.borrow_mut();
        let done = (|| {
            let started = match all.entry(number) {
                Entry::Occupied(occupied) => occupied.into_mut(),
                Entry::Vacant(vacant) => vacant.insert(Started::new(module, limits)?),
            };
            started.store.set_fuel(limits.fuel_of(elements))?;
            work(started)
        })();
        done.map_err(|trouble| match trouble {
            CallError::Unfit => FunctionFailure::Unfit,
            CallError::Trapped => {
                // For example its stack pointer still has the value of the trap, so the instance is
                // dropped.
                all.remove(&number);
                FunctionFailure::Trapped(number)
            }
        })
    }
}

impl UserFunctions for FunctionInstance {
    fn update(
        &self,
        number: u16,
        element: Element,
        operands: Operands<'_>,
        value: &mut [u8],
    ) -> Result<(), FunctionFailure> {
        let bytes = element.bytes();
        self.call(number, value.len() / bytes, |started| {
            let Started { store, apply, scratch, .. } = started;
            let apply = apply.as_ref().ok_or(CallError::Unfit)?;
            scratch.clear();
            let mut push = |value: &[u8], operand: i64| {
                let new = apply.call(&mut *store, (widened(element, value), operand))?;
                scratch.extend_from_slice(&new.to_le_bytes()[..bytes]);
                Ok::<_, CallError>(())
            };
            match operands {
                Operands::Scalar(operand) => {
                    let operand = widened(element, &operand.to_le_bytes()[..bytes]);
                    value.chunks_exact(bytes).try_for_each(|value| push(value, operand))?;
                }
                Operands::Each(operands) => {
                    let mut pairs = value.chunks_exact(bytes).zip(operands.chunks_exact(bytes));
                    pairs
                        .try_for_each(|(value, operand)| push(value, widened(element, operand)))?;
                }
            }
            value.copy_from_slice(scratch);
            Ok(())
        })
    }

    fn reduce(
        &self,
        number: u16,
        element: Element,
        initial: u64,
        value: &[u8],
    ) -> Result<u64, FunctionFailure> {
        let bytes = element.bytes();
        self.call(number, value.len() / bytes, |started| {
            let apply = started.apply.as_ref().ok_or(CallError::Unfit)?;
            let narrow = |word: i64| widened(element, &word.to_le_bytes()[..bytes]);
            let result =
                value.chunks_exact(bytes).try_fold(narrow(initial as i64), |so_far, new| {
                    let new = apply.call(&mut started.store, (so_far, widened(element, new)))?;
                    Ok::<_, CallError>(narrow(new))
                })?;
            Ok(result as u64 & (u64::MAX >> (64 - 8 * bytes)))
        })
    }

    fn filter(
        &self,
        number: u16,
        element: Element,
        operand: u64,
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), FunctionFailure> {
        let (bytes, start) = (element.bytes(), out.len());
        let operand = widened(element, &operand.to_le_bytes()[..bytes]);
        let done = self.call(number, value.len() / bytes, |started| {
            let keep = started.keep.as_ref().ok_or(CallError::Unfit)?;
            for value in value.chunks_exact(bytes) {
                if keep.call(&mut started.store, (widened(element, value), operand))? != 0 {
                    out.extend_from_slice(value);
                }
            }
            Ok(())
        });
        if done.is_err() {
            out.truncate(start);
        }
        done
    }
}

/// Widens an element to the parameter of a function.
#[inline]
fn widened(element: Element, bytes: &[u8]) -> i64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let word = i64::from_le_bytes(word);
    match element {
        Element::I8 => i64::from(word as i8),
        Element::I16 => i64::from(word as i16),
        Element::I32 => i64::from(word as i32),
        _ => word,
    }
}

/// The reason why a call failed.
enum CallError {
    /// The module has no such function.
    Unfit,
    /// It trapped, ran out of fuel, or of memory.
    Trapped,
}

impl From<wasmtime::Error> for CallError {
    fn from(_: wasmtime::Error) -> Self {
        Self::Trapped
    }
}

/// A started function. It has its own store, so a trap in it ends no other function.
struct Started {
    store: Store<StoreLimits>,
    apply: Option<Apply>,
    keep: Option<Keep>,
    /// The result of an update, until it is complete.
    scratch: Vec<u8>,
}

impl Started {
    fn new(module: &Module, limits: &FunctionLimits) -> Result<Self, wasmtime::Error> {
        let (mut store, instance) = instantiate(module, limits)?;
        let apply = instance.get_typed_func(&mut store, "apply").ok();
        let keep = instance.get_typed_func(&mut store, "keep").ok();
        Ok(Self { store, apply, keep, scratch: Vec::new() })
    }
}

fn instantiate(
    module: &Module,
    limits: &FunctionLimits,
) -> Result<(Store<StoreLimits>, Instance), wasmtime::Error> {
    let own = StoreLimitsBuilder::new()
        .memory_size(limits.memory_bytes() as usize)
        .table_elements(FUNCTION_TABLE_ELEMENTS_MAX)
        .instances(1)
        .memories(1)
        .tables(1)
        .trap_on_grow_failure(true)
        .build();
    let mut store = Store::new(module.engine(), own);
    store.limiter(|own| own);
    store.set_fuel(limits.fuel_of(0))?;
    let instance = Instance::new(&mut store, module, &[])?;
    Ok((store, instance))
}

/// Starts a module once, and checks the types of its functions.
pub(super) fn start(
    module: &Module,
    limits: &FunctionLimits,
    number: u16,
) -> Result<(), FunctionError> {
    let (mut store, instance) = instantiate(module, limits)
        .map_err(|error| FunctionError::NoStart { number, problem: format!("{error:#}") })?;
    let apply = "(i64, i64) -> i64";
    let has_apply = has_typed::<(i64, i64), i64>(&mut store, &instance, number, "apply", apply)?;
    let keep = "(i64, i64) -> i32";
    let has_keep = has_typed::<(i64, i64), i32>(&mut store, &instance, number, "keep", keep)?;
    if !has_apply && !has_keep {
        let exports = module.exports().map(|export| format!("`{}`", export.name())).collect();
        return Err(FunctionError::NoExport { number, exports });
    }
    Ok(())
}

/// Returns whether a module exports a function of this name. Its type has to be this one.
fn has_typed<P: WasmParams, R: WasmResults>(
    store: &mut Store<StoreLimits>,
    instance: &Instance,
    number: u16,
    name: &'static str,
    wanted: &'static str,
) -> Result<bool, FunctionError> {
    let found = match instance.get_export(&mut *store, name) {
        None => return Ok(false),
        Some(Extern::Func(function)) => match function.typed::<P, R>(&*store) {
            Ok(_) => return Ok(true),
            Err(_) => shown(&function.ty(&*store)),
        },
        Some(_) => "no function".into(),
    };
    Err(FunctionError::WrongType { number, name, found, wanted })
}

fn shown(ty: &wasmtime::FuncType) -> String {
    let listed = |types: Vec<wasmtime::ValType>| {
        types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    let (params, results) = (listed(ty.params().collect()), listed(ty.results().collect()));
    format!("({params}) -> {}", if results.is_empty() { "nothing" } else { &results })
}
