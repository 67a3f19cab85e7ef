//! `loch completions`.

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::outcome::Answer;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  loch completions bash > ~/.local/share/bash-completion/completions/loch
  loch completions zsh > ~/.zfunc/_loch
  loch completions fish > ~/.config/fish/completions/loch.fish";

/// Print a script that completes loch's commands in a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Runs `loch completions`; `command` is the whole command line.
pub fn run(args: &CompletionsArgs, command: &Command) -> Result<Answer> {
    // Into memory first: the generator panics when it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut for_people(command), "loch", &mut script);
    output::write(&script)?;
    Ok(Answer::Done)
}

/// The command line without the subcommands that only Loch itself calls.
fn for_people(command: &Command) -> Command {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    Command::new("loch")
        .about(command.get_about().cloned().unwrap_or_default())
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(shown)
}
