//! The commands, one file each, with their arguments, their examples and their code.

pub mod check;
pub mod completions;
pub mod delete;
pub mod doctor;
pub mod filter;
pub mod gateway;
pub mod get;
pub mod put;
pub mod reduce;
pub mod scan;
pub mod serve;
pub mod stats;
pub mod touch;
pub mod update;

mod key;
mod numbers;
mod target;
