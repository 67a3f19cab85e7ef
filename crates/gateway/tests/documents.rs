//! Everything that docs/gateway.md says there is, is tried; and the document says everything that
//! there is.
//!
//! Requests are those of the scenarios, which are compared with real servers. Some answers depend
//! on the server or are different on purpose: where those requests are tried is listed here.

mod support;

use std::collections::BTreeSet;

use support::Client;

const DOCUMENT: &str = include_str!("../../../docs/gateway.md");
const REDIS: &str = include_str!("redis.txt");
const MEMCACHED: &str = include_str!("memcached.txt");

/// Other tests, and programs of tests.
const REDIS_TEST: &str = include_str!("redis.rs");
const THIS: &str = include_str!("documents.rs");
const MEMCACHED_TEST: &str = include_str!("memcached.rs");
const PYTHON: &str = include_str!("../../../tests/clients/python/clients.py");

/// A request, and the place of a test that sends it.
const ELSEWHERE: [(&str, &str, &str); 21] = [
    ("CLIENT CACHING", REDIS_TEST, "CLIENT CACHING yes"),
    ("CLIENT ID", PYTHON, "client_id()"),
    ("CLIENT INFO", REDIS_TEST, "CLIENT INFO"),
    ("CLIENT LIST", PYTHON, "client_list()"),
    ("CLIENT NO-TOUCH", REDIS_TEST, "CLIENT NO-TOUCH on"),
    ("CLIENT SETINFO", REDIS_TEST, "CLIENT SETINFO LIB-NAME lib"),
    ("CLIENT TRACKING", REDIS_TEST, "CLIENT TRACKING on"),
    ("COMMAND COUNT", PYTHON, "command_count()"),
    ("COMMAND DOCS", REDIS_TEST, "COMMAND DOCS get"),
    ("COMMAND LIST", THIS, "COMMAND LIST\\r\\n"),
    ("INFO", PYTHON, "info(\"server\")"),
    ("QUIT", REDIS_TEST, "QUIT\\r\\n"),
    ("TIME", PYTHON, "time()"),
    ("cache_memlimit", MEMCACHED_TEST, "cache_memlimit 100"),
    ("mn", MEMCACHED_TEST, "mn\\r\\nquit\\r\\n"),
    ("quit", MEMCACHED_TEST, "mn\\r\\nquit\\r\\n"),
    ("stats", MEMCACHED_TEST, "\"stats\\r\\n\""),
    ("stats items", MEMCACHED_TEST, "stats items\\r\\n"),
    ("stats latency", MEMCACHED_TEST, "stats latency\\r\\n"),
    ("stats settings", MEMCACHED_TEST, "stats settings\\r\\n"),
    ("stats slabs", MEMCACHED_TEST, "stats slabs\\r\\n"),
];

/// Flags, and the place of a test that sends them.
const FLAGS_ELSEWHERE: [(&str, char, &str); 6] = [
    ("ma", 'E', "ma n E72 c v"),
    ("md", 'E', "md n I T30 E73"),
    ("md", 'x', "md x x"),
    ("mg", 'E', "mg viv N30 E70 c v"),
    ("ms", 'E', "ms k 1 E77"),
    ("ms", 'N', "ms log 1 MA N100"),
];

/// These commands have subcommands: what is behind them in a row of the document.
const WITH_SUBCOMMANDS: [&str; 7] =
    ["OBJECT", "MEMORY", "CLIENT", "COMMAND", "SLOWLOG", "CONFIG", "stats"];

/// Options behind the last of these commands are those of all of them.
const ALIKE: [&str; 4] = ["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"];

/// The first cells of the rows of the table below a heading.
fn rows(heading: &str) -> Vec<&'static str> {
    let at = DOCUMENT.find(heading).unwrap_or_else(|| panic!("no heading {heading:?}"));
    let section = DOCUMENT[at + heading.len()..].split("\n## ").next().expect("one at least");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    cells.filter(|cell| cell.contains('`')).collect()
}

/// What the rows of a table name: the words of commands and subcommands, and the option if it is
/// one.
fn named(heading: &str) -> Vec<(String, Option<String>)> {
    let mut all = Vec::new();
    for row in rows(heading) {
        let mut last = String::new();
        let mut commands = Vec::new();
        // Every other part is in backquotes.
        let mut is_option = false;
        for (number, part) in row.split('`').enumerate() {
            if number % 2 == 0 {
                is_option = (is_option || part.contains('(')) && !part.contains(')');
                continue;
            }
            if is_option {
                let alike = ALIKE.contains(&last.as_str());
                let of = if alike { ALIKE.map(str::to_owned).to_vec() } else { vec![last.clone()] };
                all.extend(of.into_iter().map(|command| (command, Some(part.to_owned()))));
                continue;
            }
            let outer = commands.iter().rev().find(|c: &&String| {
                WITH_SUBCOMMANDS.contains(&c.split(' ').next().expect("a word"))
            });
            last = match outer {
                Some(outer) if !part.contains(' ') => {
                    format!("{} {part}", outer.split(' ').next().expect("a word"))
                }
                _ => part.to_owned(),
            };
            commands.push(last.clone());
            all.push((last.clone(), None));
        }
    }
    all
}

fn lines(scenario: &'static str) -> impl Iterator<Item = &'static str> {
    scenario.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Whether a request is this command, with this option among its arguments if there is one.
fn is_of(request: &str, command: &str, option: Option<&str>) -> bool {
    let words: Vec<&str> = request.split("\\n").next().expect("a line").split(' ').collect();
    let wanted: Vec<&str> = command.split(' ').collect();
    let is_command = words.len() >= wanted.len()
        && words.iter().zip(&wanted).all(|(word, wanted)| word.eq_ignore_ascii_case(wanted));
    let arguments = words.get(wanted.len() + 1..).unwrap_or_default();
    is_command
        && option
            .is_none_or(|option| arguments.iter().any(|word| word.eq_ignore_ascii_case(option)))
}

/// What is named below a heading and is in no request.
fn missing(heading: &str, scenario: &'static str) -> Vec<String> {
    let is_tried = |(command, option): &(String, Option<String>)| {
        let option = option.as_deref();
        let of = |request: &str| is_of(request, command, option);
        lines(scenario).any(of) || ELSEWHERE.iter().any(|(request, ..)| of(request))
    };
    let named = named(heading);
    assert!(named.len() > 20, "the table is read: {named:?}");
    let missing = named.into_iter().filter(|named| !is_tried(named));
    missing.map(|(command, option)| format!("{command} {}", option.unwrap_or_default())).collect()
}

#[test]
fn every_command_and_option_of_the_document_is_tried() {
    for (request, file, text) in ELSEWHERE {
        assert!(file.contains(text), "{request} is not tried any more by {text:?}");
    }
    assert_eq!(missing("## Commands of Redis", REDIS), [""; 0]);
    assert_eq!(missing("## Commands of memcached", MEMCACHED), [""; 0]);
}

/// The commands that a gateway says it has.
fn commands_of(client: &mut Client) -> BTreeSet<String> {
    client.send(b"COMMAND LIST\r\n");
    let answer = support::text(&client.resp_answer());
    let words = answer.split("\r\n").filter(|line| !line.is_empty());
    words.filter(|line| !line.starts_with(['*', '$'])).map(str::to_ascii_uppercase).collect()
}

#[test]
fn the_document_names_every_command_that_there_is_and_no_other() {
    let gateway = support::gateway();
    let named: BTreeSet<String> = named("## Commands of Redis")
        .into_iter()
        .map(|(command, _)| command.split(' ').next().expect("a word").to_owned())
        .collect();
    assert_eq!(named, commands_of(&mut gateway.resp()));
}

/// The letters of the flags that a meta command takes.
fn flags_of(client: &mut Client, verb: &str) -> BTreeSet<char> {
    let letters = ('a'..='z').chain('A'..='Z');
    let is_known = |letter: &char| {
        let request = match verb {
            "ms" => format!("ms none 1 {letter}0\r\nx\r\n"),
            verb => format!("{verb} none {letter}0\r\n"),
        };
        let answer = client.memcached_answer(request.as_bytes());
        let answer = support::text(&answer);
        !["invalid flag", "invalid or duplicate flag"].iter().any(|error| answer.contains(error))
    };
    letters.filter(is_known).collect()
}

/// The flags of memcached's proto_text, all of which its meta commands take, and those of newer
/// versions, by command.
const FLAGS: [(&str, &str); 4] = [
    ("mg", "bcfhklqstuvCDEFIJLMNOPRT"),
    ("ms", "bcfhklqstuvCDEFIJLMNOPRT"),
    ("md", "bcfhklqstuvxCDEFIJLMNOPRT"),
    ("ma", "bcfhklqstuvCDEFIJLMNOPRT"),
];

#[test]
fn every_flag_of_every_meta_command_is_tried() {
    let gateway = support::gateway();
    let mut client = gateway.memcached();
    for (verb, flags) in FLAGS {
        let known = flags_of(&mut client, verb);
        assert_eq!(known, flags.chars().collect(), "{verb}");
        let place = if verb == "ms" { 3 } else { 2 };
        let mut tried: BTreeSet<char> = lines(MEMCACHED)
            .map(|line| line.split("\\n").next().expect("a line").split(' ').collect::<Vec<_>>())
            .filter(|words| words[0] == verb)
            .flat_map(|words| words.into_iter().skip(place).filter_map(|word| word.chars().next()))
            .collect();
        let elsewhere = FLAGS_ELSEWHERE.iter().filter(|(of, ..)| *of == verb);
        for (_, flag, text) in elsewhere {
            assert!(MEMCACHED_TEST.contains(text), "{verb} {flag} is not tried any more");
            tried.insert(*flag);
        }
        let missing: Vec<char> = known.difference(&tried).copied().collect();
        assert_eq!(missing, [], "{verb}");
    }
    // The marks of an item that is to be renewed.
    let mut marks = BTreeSet::new();
    for line in lines(MEMCACHED) {
        let request = format!("{}\r\n", line.replace("\\n", "\r\n"));
        let answer = support::text(&client.memcached_answer(request.as_bytes()));
        let words = answer.split([' ', '\r']).skip(1);
        marks.extend(words.filter(|word| ["W", "X", "Z"].contains(word)).map(str::to_owned));
    }
    assert_eq!(marks.len(), 3, "{marks:?}");
}
