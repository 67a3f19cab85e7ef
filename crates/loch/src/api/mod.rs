//! What a program sees of a cluster.
//!
//! | file | what it is about |
//! | --- | --- |
//! | `cluster.rs` | attaching, and what there is |
//! | `table/` | the operations: at once, as futures, and on values in place |
//! | `value.rs` | a value, and its version |
//! | `lambda.rs` | what workers compute with |

pub(crate) mod cluster;
pub(crate) mod lambda;
pub(crate) mod table;
pub(crate) mod value;
