//! Progress of a run for people: on stderr, and only if it is a terminal. Notes about skipped
//! stores are always written.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A progress line, or nothing. Systems that take turns share it.
#[derive(Debug, Clone)]
pub struct Progress {
    bar: Option<ProgressBar>,
    place: String,
}

impl Progress {
    /// A line on stderr, if that is a terminal.
    pub fn on_stderr() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Progress { bar, place: String::new() }
    }

    /// The line when it is about this system; `place` is like `1/3 memcached`.
    pub fn of(&self, place: String) -> Self {
        Progress { bar: self.bar.clone(), place }
    }

    /// A new phase; [`Self::at`] counts up to `total`, if that is known.
    pub fn phase(&self, name: &'static str, total: Option<u64>) {
        let Some(bar) = &self.bar else { return };
        let template = match total {
            Some(_) => "{prefix} {msg:<12} [{bar:40}] {percent:>3} % {elapsed}",
            None => "{prefix} {msg} {spinner} {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(self.place.clone());
        bar.reset();
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.set_message(name);
    }

    /// How far the phase is.
    pub fn at(&self, position: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Writes a line for people on stderr.
pub fn note(text: &str) {
    // If stderr is closed, the line is lost.
    let _ = writeln!(std::io::stderr(), "bench: {text}");
}
