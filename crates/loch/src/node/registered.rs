//! The functions that a table was declared with. Builds without the feature `functions` have none.

use loch_engines::functions::{Element, FunctionFailure, Operands, UserFunctions};

use crate::{Error, Result, TableConfig};

#[cfg(feature = "functions")]
type Functions = std::sync::Arc<super::functions::Functions>;
#[cfg(feature = "functions")]
type Instance = super::functions::FunctionInstance;
#[cfg(not(feature = "functions"))]
type Functions = ();
#[cfg(not(feature = "functions"))]
type Instance = ();

/// The compiled functions of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableFunctions(Option<Functions>);

/// The functions of a table as one processor calls them.
#[derive(Debug)]
pub(crate) struct CalledFunctions(Option<Instance>);

impl TableFunctions {
    /// Compiles the functions that a table is declared with.
    ///
    /// # Errors
    /// [`Error::Config`] names table, function and file.
    pub fn of(table: &TableConfig) -> Result<Self> {
        if table.engine.functions().is_empty() { Ok(Self::default()) } else { compiled(table) }
    }

    /// Makes the functions callable by one processor.
    pub fn callable(&self) -> CalledFunctions {
        #[cfg(feature = "functions")]
        return CalledFunctions(self.0.clone().map(Instance::new));
        #[cfg(not(feature = "functions"))]
        CalledFunctions(self.0)
    }
}

#[cfg(feature = "functions")]
fn compiled(table: &TableConfig) -> Result<TableFunctions> {
    let refused = |problem: String| Error::config(format!("table {:?}", table.name), problem);
    let functions = super::functions::Functions::new(super::functions::FunctionLimits::default());
    let mut functions = functions.map_err(|error| refused(error.to_string()))?;
    for crate::FunctionConfig { number, path } in table.engine.functions() {
        let module = read(path).map_err(Error::os("read", path))?;
        let registered = functions.register(*number, &module);
        registered.map_err(|error| refused(format!("{}: {error}", path.display())))?;
    }
    Ok(TableFunctions(Some(functions.into())))
}

#[cfg(not(feature = "functions"))]
fn compiled(table: &TableConfig) -> Result<TableFunctions> {
    let problem = "functions cannot be compiled by this build: build Loch with the feature \
                   `functions`, or declare the table without";
    Err(Error::config(format!("table {:?}", table.name), problem))
}

/// Reads a module. The bound matters for a file without an end.
#[cfg(feature = "functions")]
fn read(path: &std::path::Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut module = Vec::new();
    let limit = crate::limits::FUNCTION_MODULE_BYTES_MAX as u64 + 1;
    crate::private::open_named(path)?.take(limit).read_to_end(&mut module)?;
    Ok(module)
}

impl CalledFunctions {
    fn functions(&self) -> &dyn UserFunctions {
        self.0.as_ref().map_or(&(), |instance| instance)
    }
}

impl UserFunctions for CalledFunctions {
    fn update(
        &self,
        number: u16,
        element: Element,
        operands: Operands<'_>,
        value: &mut [u8],
    ) -> Result<(), FunctionFailure> {
        self.functions().update(number, element, operands, value)
    }

    fn reduce(
        &self,
        number: u16,
        element: Element,
        initial: u64,
        value: &[u8],
    ) -> Result<u64, FunctionFailure> {
        self.functions().reduce(number, element, initial, value)
    }

    fn filter(
        &self,
        number: u16,
        element: Element,
        operand: u64,
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), FunctionFailure> {
        self.functions().filter(number, element, operand, value, out)
    }
}
