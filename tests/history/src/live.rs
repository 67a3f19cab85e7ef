//! Which values matter although nobody saw them: those that something was appended to which was
//! seen.
//!
//! What is appended to a value makes another that tells of both, and no two are made the same
//! ([`appended`]). So how a value that was seen came about can be found by trying, and whatever
//! occurs in none of these ways can be exchanged for another such value.

use std::collections::HashSet;

use crate::{Ask, Operation, appended};

/// Values are tried at most, for one key.
const TRIES_MAX: u64 = 1 << 20;

/// What occurs in values that were seen.
pub(crate) struct Live {
    /// Values that were seen, and those that others which were seen were made of.
    pub values: HashSet<u64>,
    /// What was appended to make those.
    pub pieces: HashSet<u64>,
}

struct Search {
    live: Live,
    pieces: Vec<u64>,
    /// Values that were seen, and of which it is not known yet how they were made.
    open: HashSet<u64>,
    tries: u64,
}

impl Live {
    /// What occurs in the values `seen` of a key with these operations; `None` if that cannot be
    /// told of one of them.
    pub fn of(operations: &[Operation], seen: HashSet<u64>) -> Option<Self> {
        let asked = || operations.iter().map(|operation| operation.ask);
        if asked().any(Ask::is_update) {
            return None;
        }
        let piece = |ask: Ask| if let Ask::Append(piece) = ask { Some(piece) } else { None };
        let pieces: Vec<u64> = asked().filter_map(piece).collect();
        let mut bases: HashSet<u64> = operations.iter().filter_map(Operation::value).collect();
        // Without a value there is what is appended alone.
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
    /// Appends `depth` more pieces to `value`, which was made of `values` by appending `used`.
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
