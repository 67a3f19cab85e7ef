//! What nodes and clients must agree on: where everything is in a node's memory.

pub(crate) mod config;
pub(crate) mod declaration;
pub(crate) mod difference;
pub(crate) mod facts;
pub(crate) mod memory;
pub(crate) mod plan;
pub(crate) mod table_info;
