//! Loch.
