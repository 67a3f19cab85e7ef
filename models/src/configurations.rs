//! The configurations to check, and why: reads `configurations.txt`, which explains its own format.

use crate::loch::Setup;
use crate::published;
use crate::script::Op;

/// The subject of a search, and its required result.
pub enum Subject {
    /// The protocol: it must hold.
    Protocol(Setup),
    /// The protocol without a rule: the search must detect that, and with the rule the protocol
    /// must hold.
    Mutant(Setup),
    /// The published protocol: the flaw must be found.
    Flaw(published::Setup),
}

/// One configuration to check.
pub struct Configuration {
    /// Its name on the command line.
    pub name: String,
    /// Why it is there.
    pub why: String,
    /// The text of its setup and scripts.
    pub text: String,
    /// Whether it takes minutes.
    pub large: bool,
    /// The subject of the search.
    pub subject: Subject,
}

const TEXT: &str = include_str!("../configurations.txt");

/// All configurations, in the order of the report.
///
/// # Panics
/// If `configurations.txt` has a mistake; a test reads it.
pub fn all() -> Vec<Configuration> {
    parse(TEXT).unwrap_or_else(|mistake| panic!("configurations.txt: {mistake}"))
}

fn parse(text: &str) -> Result<Vec<Configuration>, String> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let mut section = "";
    let (mut all, mut variants) = (Vec::new(), Vec::new());
    while let Some(name) = lines.next() {
        if let Some(heading) = name.strip_prefix('[') {
            section = heading.trim_end_matches(']');
            if section == "mutants" {
                all.append(&mut variants);
            }
            continue;
        }
        let why = lines.next().ok_or(format!("{name} says nothing"))?.trim();
        let setup = lines.next().ok_or(format!("{name} has no setup"))?.trim();
        let one = configuration(section, name, why, setup).map_err(|e| format!("{name}: {e}"))?;
        variants.extend(anywhere(&one));
        all.push(one);
    }
    all.append(&mut variants);
    Ok(all)
}

fn configuration(
    section: &str,
    name: &str,
    why: &str,
    text: &str,
) -> Result<Configuration, String> {
    let mut parts = text.split('|');
    let options = parts.next().unwrap_or_default().split_whitespace();
    let script = |part: &str| part.split_whitespace().map(str::parse).collect::<Result<_, _>>();
    let scripts: Vec<Vec<Op>> = parts.map(script).collect::<Result<_, String>>()?;
    let subject = if section == "flaws" {
        Subject::Flaw(published::Setup::read(options, scripts)?)
    } else {
        let setup = Setup::read(options, scripts)?;
        match section {
            "protocol" | "large" => Subject::Protocol(setup),
            "mutants" if setup.mutation.is_some() => Subject::Mutant(setup),
            _ => return Err(format!("does not belong under [{section}]")),
        }
    };
    let (name, why, text) = (name.to_owned(), why.to_owned(), text.to_owned());
    Ok(Configuration { name, why, text, large: section == "large", subject })
}

/// The same without the home rule.
fn anywhere(one: &Configuration) -> Option<Configuration> {
    let Subject::Protocol(setup) = &one.subject else { return None };
    if setup.home_only {
        return None;
    }
    Some(Configuration {
        name: format!("{}-anywhere", one.name),
        why: "The same without the home rule: every insert is tentative, and takes any free slot."
            .to_owned(),
        text: format!("no-home {}", one.text),
        large: one.large,
        subject: Subject::Protocol(Setup {
            home_insert: false,
            any_free_slot: true,
            ..setup.clone()
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_configurations_share_a_name() {
        let mut names: Vec<_> = all().into_iter().map(|configuration| configuration.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn every_mutation_is_tried() {
        let tried = all().into_iter().filter_map(|configuration| match configuration.subject {
            Subject::Mutant(setup) => setup.mutation,
            _ => None,
        });
        let tried: Vec<_> = tried.collect();
        for mutation in crate::loch::Mutation::ALL {
            assert!(tried.contains(&mutation), "{mutation:?} is in no configuration");
        }
    }

    #[test]
    fn a_mistake_is_named() {
        let wrong = |text| parse(text).map(|_| ()).unwrap_err();
        assert_eq!(wrong("[protocol]\nx\n y\n A@0 colour=red | GET(A)"), "x: what is colour=red?");
        assert_eq!(wrong("[protocol]\nx\n y\n A@0 | GET(C)"), "x: what is GET(C)?");
        assert_eq!(wrong("[mutants]\nx\n y\n | GET(A)"), "x: does not belong under [mutants]");
        assert_eq!(wrong("[protocol]\nx\n y"), "x has no setup");
    }
}
