//! Memory: how the operations of a client get entries, and how they give them back.
//!
//! | file | what it does |
//! | --- | --- |
//! | `lease.rs` | leases slabs by CAS, lists what is free in them, and notes what is |
//! | `claims.rs` | keeps slabs from getting lost with a future that ends in the middle of this |
//! | `victims.rs` | chooses values that are worth little, in a table that evicts |
//! | `evict.rs` | takes them out |
//! | `empty.rs` | gets such a table's slabs from other sizes and clients |
//! | `balance.rs` | sees which sizes such a table's memory should go to |
//! | `reclaim.rs` | what can be had after grace periods, and what a client leaves behind |
//! | `allocate.rs` | takes an entry, from wherever there is one |

mod allocate;
mod balance;
pub(super) mod claims;
mod empty;
pub(super) mod evict;
mod lease;
mod reclaim;
pub(super) mod victims;
