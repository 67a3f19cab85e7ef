use super::Scale;
use crate::bench::kv_direct::report::Table;
pub fn tables(_: &Scale) -> Vec<Table> { vec![] }
