//! The interface of a cluster for programs.
//!
//! | file | contents |
//! | --- | --- |
//! | `cluster.rs` | a cluster and its nodes |
//! | `table/` | the operations: blocking, as futures, and on values in place; scans |
//! | `lambda.rs` | functions by which workers compute |

pub(crate) mod cluster;
pub(crate) mod lambda;
pub(crate) mod table;
