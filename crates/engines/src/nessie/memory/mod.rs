//! Memory: how the operations of a client get entries, and how they give them back.
//!
//! | file | what it does |
//! | --- | --- |
//! | `lease.rs` | leases slabs by CAS, lists what is free in them, and notes what is |
//! | `left.rs` | puts slabs to use that a dropped future has left in the middle of this |
//! | `victims.rs` | chooses values that are worth little, in a table that evicts |
//! | `evict.rs` | takes them out |
//! | `empty.rs` | gets such a table's slabs from other sizes and clients |
//! | `balance.rs` | sees which sizes such a table's memory should go to |
//! | `reclaim.rs` | what can be had after grace periods, and what a client leaves behind |
//! | `allocate.rs` | takes an entry, from wherever there is one |

mod allocate;
mod balance;
mod empty;
pub(super) mod evict;
mod lease;
pub(super) mod left;
mod reclaim;
pub(super) mod victims;
