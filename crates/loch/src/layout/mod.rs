//! What nodes and clients must agree on: where everything is in a node's memory. It uses nothing of
//! either side.
//!
//! | file | what it is about |
//! | --- | --- |
//! | `declaration.rs` | what can be declared of a table |
//! | `config.rs` | what a node is told |
//! | `plan/` | from a configuration to the layout of a region |
//! | `difference.rs` | in what two layouts differ |
//! | `memory.rs` | the regions of a cluster, as they were laid out |
//! | `facts.rs` | what a node tells of the layout of another |
//! | `table_info.rs` | a table, for people |

pub(crate) mod config;
pub(crate) mod declaration;
pub(crate) mod difference;
pub(crate) mod facts;
pub(crate) mod memory;
pub(crate) mod plan;
pub(crate) mod table_info;
