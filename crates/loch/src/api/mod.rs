//! What a program sees of a cluster.

pub(crate) mod cluster;
pub(crate) mod lambda;
pub(crate) mod table;
pub(crate) mod value;
