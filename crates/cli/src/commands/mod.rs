//! The commands, one file each: its arguments, its examples, and what it does.

pub mod check;
pub mod completions;
pub mod delete;
pub mod doctor;
pub mod filter;
pub mod get;
pub mod put;
pub mod reduce;
pub mod serve;
pub mod stats;
pub mod update;

mod key;
mod numbers;
mod target;
