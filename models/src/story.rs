//! The words in which a step is told, for traces.

/// Collects what a step does, if anybody wants to know: a search looks at millions of steps and
/// tells a few dozen.
pub struct Story {
    text: Option<String>,
}

impl Story {
    /// A story that is told, or one that nobody listens to.
    pub fn new(told: bool) -> Self {
        Self { text: told.then(String::new) }
    }

    /// Adds to the story; `words` is not called when nobody listens.
    pub fn say(&mut self, words: impl FnOnce() -> String) {
        if let Some(text) = &mut self.text {
            if !text.is_empty() {
                text.push_str("; ");
            }
            text.push_str(&words());
        }
    }

    /// What was said.
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
