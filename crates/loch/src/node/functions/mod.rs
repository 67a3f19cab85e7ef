//! Functions of users on the elements of values (kv-direct §3.2: "user-defined functions").
//!
//! A function is a WebAssembly module. It is registered with a table under a number, which is how
//! operations name it, before the table is served: it is then compiled to machine code, and what
//! cannot be used is refused ([`FunctionError`]). A module exports one of these, or both:
//!
//! | export | of | wasm type |
//! | --- | --- | --- |
//! | `apply` | updates, reductions | `(value: i64, operand: i64) -> i64` |
//! | `keep` | filters | `(value: i64, operand: i64) -> i32`, not 0 to keep the value |
//!
//! Signed elements are sign-extended, unsigned ones zero-extended, floats are their bits, and the
//! low bits of a result count. In a reduction, `value` is the result so far and `operand` an
//! element.
//!
//! # Invariants
//! 1. A module imports nothing: it can compute, and nothing else.
//! 2. Whatever a module does, a call ends: it has so much fuel (about an instruction each) for
//!    itself and for each element, up to a bound, and memory and stack up to a bound
//!    ([`FunctionLimits`]). What goes beyond, or traps, fails for its caller and changes nothing.
//! 3. Results depend on what a module was given only: NaNs are canonical, there are no threads and
//!    no relaxed vector instructions. A module that keeps something in memory or globals finds it
//!    again in its next call, but each processor has its own, and after a trap it is as at the
//!    start.
//! 4. No signal handler is installed: machine code checks what it does. A process that embeds a
//!    node keeps its own.

mod instance;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;
use wasmtime::{Config, Engine, Module, OperatorCost};

pub use self::instance::FunctionInstance;
use crate::limits::{
    FUNCTION_FUEL_BASE, FUNCTION_FUEL_MAX, FUNCTION_FUEL_PER_ELEMENT, FUNCTION_MEMORY_PAGES_MAX,
    FUNCTION_MODULE_BYTES_MAX, FUNCTION_STACK_BYTES, FUNCTION_TABLE_ELEMENTS_MAX, FUNCTIONS_MAX,
};

/// Bytes of a page of a module's memory.
const PAGE_BYTES: u64 = 64 << 10;

/// What a function may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionLimits {
    /// Bytes of a module.
    pub module_bytes: usize,
    /// Pages of its memory, 64 KiB each.
    pub memory_pages: u32,
    /// Fuel of a call.
    pub fuel: u64,
    /// More of it for each element.
    pub fuel_per_element: u64,
    /// All fuel of a call, however many elements there are.
    pub fuel_max: u64,
}

impl Default for FunctionLimits {
    fn default() -> Self {
        Self {
            module_bytes: FUNCTION_MODULE_BYTES_MAX,
            memory_pages: FUNCTION_MEMORY_PAGES_MAX,
            fuel: FUNCTION_FUEL_BASE,
            fuel_per_element: FUNCTION_FUEL_PER_ELEMENT,
            fuel_max: FUNCTION_FUEL_MAX,
        }
    }
}

impl FunctionLimits {
    /// The fuel of a call on so many elements.
    fn fuel_of(&self, elements: usize) -> u64 {
        let more = self.fuel_per_element.saturating_mul(elements as u64);
        self.fuel.saturating_add(more).min(self.fuel_max)
    }

    fn memory_bytes(&self) -> u64 {
        u64::from(self.memory_pages) * PAGE_BYTES
    }
}

/// Why a function was not registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FunctionError {
    /// There is a function of this number.
    #[error("function {number}: there is another one of this number")]
    Taken {
        /// The number.
        number: u16,
    },
    /// The table has as many functions as it can.
    #[error("function {number}: a table has up to {FUNCTIONS_MAX} functions")]
    TooMany {
        /// The number.
        number: u16,
    },
    /// The module is too long.
    #[error("function {number}: the module has {len} bytes, and may have {max}: strip it")]
    TooLong {
        /// The number.
        number: u16,
        /// Bytes of the module.
        len: usize,
        /// How many it may have.
        max: usize,
    },
    /// The bytes are no module, or one that uses what is switched off.
    #[error("function {number}: this is no WebAssembly module that can be compiled: {problem}")]
    Invalid {
        /// The number.
        number: u16,
        /// What is wrong with it.
        problem: String,
    },
    /// The module needs something from outside.
    #[error(
        "function {number}: the module imports {import}, and gets nothing: build it for \
         wasm32-unknown-unknown, without WASI"
    )]
    Imports {
        /// The number.
        number: u16,
        /// What it imports.
        import: String,
    },
    /// The module has no function that is known.
    #[error(
        "function {number}: the module exports neither `apply` nor `keep`, but {}", listed(.exports)
    )]
    NoExport {
        /// The number.
        number: u16,
        /// What it exports.
        exports: Vec<String>,
    },
    /// A function has other parameters or results.
    #[error("function {number}: the module exports `{name}` as {found}, wanted {wanted}")]
    WrongType {
        /// The number.
        number: u16,
        /// The name of the export.
        name: &'static str,
        /// What it is.
        found: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// The module wants more memory or tables than it gets.
    #[error("function {number}: the module begins with {wanted} {what}, and may have {max}")]
    TooLarge {
        /// The number.
        number: u16,
        /// Of what.
        what: &'static str,
        /// So much.
        wanted: u64,
        /// The limit.
        max: u64,
    },
    /// It cannot be started.
    #[error("function {number}: the module does not start: {problem}")]
    NoStart {
        /// The number.
        number: u16,
        /// What happened.
        problem: String,
    },
    /// There is no compiler for this machine.
    #[error("functions cannot be compiled for this machine: {problem}")]
    NoCompiler {
        /// Why not.
        problem: String,
    },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "nothing".into() } else { names.join(", ") }
}

/// The functions of a table, compiled. Its processors share them, and each makes its own
/// [`FunctionInstance`].
///
/// ```
/// use loch::{FunctionLimits, Functions};
/// let mut functions = Functions::new(FunctionLimits::default())?;
/// let refused = functions.register(1, b"not a module").unwrap_err();
/// assert!(refused.to_string().starts_with("function 1: this is no WebAssembly module"));
/// # Ok::<(), loch::FunctionError>(())
/// ```
pub struct Functions {
    engine: Engine,
    limits: FunctionLimits,
    modules: BTreeMap<u16, Module>,
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<u16> = self.numbers().collect();
        f.debug_struct("Functions").field("numbers", &numbers).finish_non_exhaustive()
    }
}

impl Functions {
    /// No functions yet.
    ///
    /// # Errors
    /// [`FunctionError::NoCompiler`].
    pub fn new(limits: FunctionLimits) -> Result<Self, FunctionError> {
        let engine = Engine::new(&config(&limits))
            .map_err(|error| FunctionError::NoCompiler { problem: format!("{error:#}") })?;
        Ok(Self { engine, limits, modules: BTreeMap::new() })
    }

    /// Compiles a module, and starts it once to see that it can be.
    ///
    /// # Errors
    /// If the module cannot be used, or there is one of this number.
    pub fn register(&mut self, number: u16, module: &[u8]) -> Result<(), FunctionError> {
        let (len, max) = (module.len(), self.limits.module_bytes);
        if self.modules.contains_key(&number) {
            return Err(FunctionError::Taken { number });
        }
        if self.modules.len() >= FUNCTIONS_MAX {
            return Err(FunctionError::TooMany { number });
        }
        if len > max {
            return Err(FunctionError::TooLong { number, len, max });
        }
        let module = Module::new(&self.engine, module)
            .map_err(|error| FunctionError::Invalid { number, problem: format!("{error:#}") })?;
        self.look_at(number, &module)?;
        instance::start(&module, &self.limits, number)?;
        self.modules.insert(number, module);
        Ok(())
    }

    /// The numbers that are taken, in their order.
    pub fn numbers(&self) -> impl Iterator<Item = u16> {
        self.modules.keys().copied()
    }

    /// Refuses what can be seen without starting it.
    fn look_at(&self, number: u16, module: &Module) -> Result<(), FunctionError> {
        if let Some(import) = module.imports().next() {
            let import = format!("{}.{}", import.module(), import.name());
            return Err(FunctionError::Imports { number, import });
        }
        let needs = module.resources_required();
        let bounds = [
            (
                "pages of memory",
                needs.max_initial_memory_size.unwrap_or(0),
                self.limits.memory_pages.into(),
            ),
            (
                "elements in a table",
                needs.max_initial_table_size.unwrap_or(0),
                FUNCTION_TABLE_ELEMENTS_MAX as u64,
            ),
            ("memories", needs.num_memories.into(), 1),
            ("tables", needs.num_tables.into(), 1),
        ];
        for (what, wanted, max) in bounds {
            if wanted > max {
                return Err(FunctionError::TooLarge { number, what, wanted, max });
            }
        }
        Ok(())
    }
}

/// How modules are compiled: see the invariants.
fn config(limits: &FunctionLimits) -> Config {
    let mut config = Config::new();
    config
        .consume_fuel(true)
        .operator_cost(costs())
        .max_wasm_stack(FUNCTION_STACK_BYTES)
        .signals_based_traps(false)
        .native_unwind_info(false)
        .wasm_backtrace_max_frames(None)
        .cranelift_nan_canonicalization(true)
        .wasm_relaxed_simd(false)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        // A memory is where it is from the start, and no address space is reserved beyond its
        // limit.
        .memory_reservation(limits.memory_bytes())
        .memory_reservation_for_growth(0)
        .memory_may_move(false)
        .memory_guard_size(0);
    config
}

/// What instructions cost: one each, but for those that leave the machine code.
fn costs() -> OperatorCost {
    const CALL: u8 = 64;
    OperatorCost {
        MemoryGrow: u8::MAX,
        TableGrow: u8::MAX,
        MemoryCopy: CALL,
        MemoryFill: CALL,
        MemoryInit: CALL,
        TableCopy: CALL,
        TableFill: CALL,
        TableInit: CALL,
        TableGet: CALL,
        TableSet: CALL,
        DataDrop: CALL,
        ElemDrop: CALL,
        RefFunc: CALL,
        CallIndirect: CALL,
        ..OperatorCost::new()
    }
}
