//! The layout on which nodes and clients have to agree: where everything is in a node's memory. It
//! uses no module of either side.
//!
//! | file | contents |
//! | --- | --- |
//! | `declaration.rs` | the declaration of a table |
//! | `config.rs` | the configuration of a node |
//! | `plan/` | from a configuration to the layout of a region |
//! | `difference.rs` | the differences of two layouts |
//! | `memory.rs` | the regions of a cluster, as they were laid out |
//! | `facts.rs` | the facts of a node that another node tells |
//! | `table_info.rs` | the description of a table for users |

pub(crate) mod config;
pub(crate) mod declaration;
pub(crate) mod difference;
pub(crate) mod facts;
pub(crate) mod memory;
pub(crate) mod plan;
pub(crate) mod table_info;
