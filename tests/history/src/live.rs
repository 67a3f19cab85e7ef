//! Values that matter although no answer shows them: values to which a piece was appended, if the
//! result was seen.
//!
//! A value and an appended piece make another value, and different pairs make different values
//! ([`appended`]). So this module can find by trials how a seen value was made. A value that is
//! part of no seen value can be exchanged for another such value.

use std::collections::HashSet;

use crate::{Ask, Operation, appended};

/// The most values that are tried for one key.
const TRIES_MAX: u64 = 1 << 20;

/// The parts of seen values.
pub(crate) struct Live {
    /// Values that were seen, and values from which seen values were made.
    pub values: HashSet<u64>,
    /// The pieces that were appended to make these.
    pub pieces: HashSet<u64>,
}

struct Search {
    live: Live,
    pieces: Vec<u64>,
    /// Seen values that were not explained yet.
    open: HashSet<u64>,
    tries: u64,
}

impl Live {
    /// The parts of the values `seen` of a key with these operations; `None` if one of them cannot
    /// be explained.
    pub fn of(operations: &[Operation], seen: HashSet<u64>) -> Option<Self> {
        let asked = || operations.iter().map(|operation| operation.ask);
        if asked().any(Ask::is_update) {
            return None;
        }
        let piece = |ask: Ask| if let Ask::Append(piece) = ask { Some(piece) } else { None };
        let pieces: Vec<u64> = asked().filter_map(piece).collect();
        let mut bases: HashSet<u64> = operations.iter().filter_map(Operation::value).collect();
        // On a key without a value, the appended piece alone is the value.
        bases.extend(&pieces);
        let open = seen.difference(&bases).copied().collect();
        let first = pieces.iter().copied().filter(|piece| seen.contains(piece)).collect();
        let live = Self { values: seen, pieces: first };
        let mut search = Search { live, pieces, open, tries: 0 };
        for depth in 1..=search.pieces.len() {
            if search.open.is_empty() {
                break;
            }
            for base in &bases {
                search.extend(*base, &mut vec![*base], &mut Vec::new(), depth)?;
            }
        }
        search.open.is_empty().then_some(search.live)
    }
}

impl Search {
    /// Appends `depth` more pieces to `value`, which was made from `values` by appending `used`.
    fn extend(
        &mut self,
        value: u64,
        values: &mut Vec<u64>,
        used: &mut Vec<u64>,
        depth: usize,
    ) -> Option<()> {
        for at in 0..self.pieces.len() {
            let piece = self.pieces[at];
            if used.contains(&piece) || values[0] == piece {
                continue;
            }
            self.tries += 1;
            if self.tries > TRIES_MAX {
                return None;
            }
            let made = appended(value, piece);
            used.push(piece);
            if depth > 1 {
                values.push(made);
                self.extend(made, values, used, depth - 1)?;
                values.pop();
            } else if self.open.remove(&made) {
                let first = values[0];
                let begins = self.pieces.contains(&first).then_some(first);
                self.live.pieces.extend(used.iter().copied().chain(begins));
                self.live.values.extend(values.iter().copied());
            }
            used.pop();
        }
        Some(())
    }
}
