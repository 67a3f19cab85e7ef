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
//! 2. Every call ends, whatever the module does. A call gets fuel (about one unit for an
//!    instruction) for itself and for each element, up to a bound, and bounded memory and stack
//!    ([`FunctionLimits`]). A call that uses more, or traps, fails for its caller and changes
//!    nothing.
//! 3. A result depends only on the input of the module: NaNs are canonical, and there are no
//!    threads and no relaxed vector instructions. A module that keeps something in memory or
//!    globals finds it again in its next call. But each processor has its own instance, and after a
//!    trap the instance starts over.
//! 4. No signal handler is installed, since the machine code checks itself. A process that embeds a
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

/// The limits of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionLimits {
    /// The longest module, in bytes.
    pub module_bytes: usize,
    /// The most memory of a module, in pages of 64 KiB.
    pub memory_pages: u32,
    /// The fuel of a call.
    pub fuel: u64,
    /// The additional fuel of a call for each element.
    pub fuel_per_element: u64,
    /// The most fuel of a call, however many elements there are.
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
    /// The fuel of a call on `elements` elements.
    fn fuel_of(&self, elements: usize) -> u64 {
        let more = self.fuel_per_element.saturating_mul(elements as u64);
        self.fuel.saturating_add(more).min(self.fuel_max)
    }

    fn memory_bytes(&self) -> u64 {
        u64::from(self.memory_pages) * PAGE_BYTES
    }
}

/// The reason why a function was not registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FunctionError {
    /// Another function has this number.
    #[error("function {number}: there is another one of this number")]
    Taken {
        /// The number.
        number: u16,
    },
    /// The table has as many functions as it can have.
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
        /// The length of the module in bytes.
        len: usize,
        /// The longest module that is allowed.
        max: usize,
    },
    /// The bytes are not a module, or the module uses a feature that is switched off.
    #[error("function {number}: this is no WebAssembly module that can be compiled: {problem}")]
    Invalid {
        /// The number.
        number: u16,
        /// The compiler's message.
        problem: String,
    },
    /// The module imports something.
    #[error(
        "function {number}: the module imports {import}, and gets nothing: build it for \
         wasm32-unknown-unknown, without WASI"
    )]
    Imports {
        /// The number.
        number: u16,
        /// The name of the import.
        import: String,
    },
    /// The module exports neither of the known functions.
    #[error(
        "function {number}: the module exports neither `apply` nor `keep`, but {}", listed(.exports)
    )]
    NoExport {
        /// The number.
        number: u16,
        /// The exports of the module.
        exports: Vec<String>,
    },
    /// A function has other parameters or results.
    #[error("function {number}: the module exports `{name}` as {found}, wanted {wanted}")]
    WrongType {
        /// The number.
        number: u16,
        /// The name of the export.
        name: &'static str,
        /// The type of the export.
        found: String,
        /// The type that it should have.
        wanted: &'static str,
    },
    /// The module wants more memory or tables than it gets.
    #[error("function {number}: the module begins with {wanted} {what}, and may have {max}")]
    TooLarge {
        /// The number.
        number: u16,
        /// The resource that is too large.
        what: &'static str,
        /// The amount that the module wants.
        wanted: u64,
        /// The limit.
        max: u64,
    },
    /// The module cannot be started.
    #[error("function {number}: the module does not start: {problem}")]
    NoStart {
        /// The number.
        number: u16,
        /// The runtime's message.
        problem: String,
    },
    /// There is no compiler for this machine.
    #[error("functions cannot be compiled for this machine: {problem}")]
    NoCompiler {
        /// The compiler's message.
        problem: String,
    },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "nothing".into() } else { names.join(", ") }
}

/// The compiled functions of a table. Its processors share them, and each makes its own
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
    /// Makes a set without functions.
    ///
    /// # Errors
    /// [`FunctionError::NoCompiler`].
    pub fn new(limits: FunctionLimits) -> Result<Self, FunctionError> {
        let engine = Engine::new(&config(&limits))
            .map_err(|error| FunctionError::NoCompiler { problem: format!("{error:#}") })?;
        Ok(Self { engine, limits, modules: BTreeMap::new() })
    }

    /// Compiles a module, and starts it once as a test.
    ///
    /// # Errors
    /// If the module cannot be used, or another function has this number.
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

    /// The numbers of the functions, in ascending order.
    pub fn numbers(&self) -> impl Iterator<Item = u16> {
        self.modules.keys().copied()
    }

    /// Refuses a module for reasons that show without starting it.
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

/// The configuration of the compiler: see the invariants.
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
        // A memory never moves, and no address space is reserved beyond its limit.
        .memory_reservation(limits.memory_bytes())
        .memory_reservation_for_growth(0)
        .memory_may_move(false)
        .memory_guard_size(0);
    config
}

/// The cost of instructions: one unit each, except for those that leave the machine code.
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
