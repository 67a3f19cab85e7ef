//! The layout: the meaning and the places of a table's words and bytes. No code here reads or
//! writes memory.
//!
//! | file | what it lays out |
//! | --- | --- |
//! | `geometry.rs` | a table: how many of everything, and how the bits of a word are divided |
//! | `ite.rs` | an index table entry: the word of a slot |
//! | `dte.rs` | a data table entry: its header, and what follows |
//! | `slab.rs` | the data table: chunks, the slabs they make up, and the entries of a slab |
//! | `marks.rs` | how the values of a bucket are used, in a table that evicts |
//! | `ledger.rs` | what such a table counts |
//! | `moves.rs` | where MOVEs have brought words lately, for scans |
//! | `hash.rs` | a table's regions, and the slots of a key in them |

pub mod dte;
pub mod geometry;
pub mod hash;
pub mod ite;
pub mod ledger;
pub mod marks;
pub mod moves;
pub mod slab;
