//! Descriptions of steps, for traces.

/// Collects the description of a step, if it is wanted: a search visits millions of steps and
/// describes a few dozen.
pub struct Story {
    text: Option<String>,
}

impl Story {
    /// A story that is kept if `told`, and dropped otherwise.
    pub fn new(told: bool) -> Self {
        Self { text: told.then(String::new) }
    }

    /// Adds to the story; `words` is not called if the story is dropped.
    pub fn say(&mut self, words: impl FnOnce() -> String) {
        if let Some(text) = &mut self.text {
            if !text.is_empty() {
                text.push_str("; ");
            }
            text.push_str(&words());
        }
    }

    /// The story.
    pub fn into_text(self) -> String {
        self.text.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untold_story_costs_nothing() {
        let mut story = Story::new(false);
        story.say(|| unreachable!("nobody listens"));
        assert_eq!(story.into_text(), "");
    }
}
