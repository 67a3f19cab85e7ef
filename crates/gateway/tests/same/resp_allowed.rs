//! Which answers to requests of Redis are the same, and which differences the document names.

use std::time::Duration;

use super::allowed::{Allowed, Difference};
use super::sequence::Request;
use super::support::text;

/// Commands whose answers are times that pass.
const TIMES: [&str; 4] = ["ttl", "pttl", "expiretime", "pexpiretime"];

/// Whether answers say the same: keys have no order, and time goes on.
pub fn is_same(request: &Request, ours: &[u8], theirs: &[u8], slack: Duration) -> bool {
    if ours == theirs {
        return true;
    }
    let name = request.word(0);
    let [mut ours, mut theirs] = [ours, theirs].map(|answer| text(answer).replace("\r\n", "\n"));
    match name.as_str() {
        // What the server says of itself.
        "hello" => return ours[..1] == theirs[..1] && !ours.starts_with('-'),
        "client" if request.has("id") => return ours[..1] == theirs[..1],
        // Any key is as good as another one.
        "randomkey" => {
            return ours.starts_with('$') && theirs.starts_with('$') && !ours.starts_with("$-");
        }
        "keys" | "scan" | "exec" => {
            let sorted = |text: &str| {
                let mut lines: Vec<&str> = text.lines().collect();
                lines.sort_unstable();
                lines.join("\n")
            };
            let before = ours.clone();
            if sorted(&ours) == sorted(&theirs) && (name != "exec" || before.contains('*')) {
                return true;
            }
            if name != "exec" {
                return false;
            }
        }
        _ => (),
    }
    if !TIMES.contains(&name.as_str()) && name != "exec" {
        return false;
    }
    // In milliseconds, or in seconds, which are rounded.
    let most = slack.as_millis() as i64 + 2;
    let is_close = |(ours, theirs): (&str, &str)| {
        let number = |line: &str| line.strip_prefix(':').and_then(|text| text.parse::<i64>().ok());
        let apart = number(ours).zip(number(theirs)).map(|(a, b)| (a, b, (a - b).abs()));
        ours == theirs || apart.is_some_and(|(a, b, apart)| a > 900 && b > 900 && apart <= most)
    };
    ours = ours.trim_end().to_owned();
    theirs = theirs.trim_end().to_owned();
    ours.lines().count() == theirs.lines().count() && ours.lines().zip(theirs.lines()).all(is_close)
}

pub const ALLOWED: &[Allowed] = &[
    Allowed {
        sentence: "Another key, such as the empty one that Redis allows, is never there: commands that \
                   read it find nothing, and commands that store under it are errors.",
        ends: true,
        is: |difference| {
            let is_other = |word: &Vec<u8>| !(1..=64 << 10).contains(&word.len());
            let names_other =
                |(_, request): (usize, &Request)| request.words[1..].iter().any(is_other);
            difference.before().any(names_other) && contains(difference.ours, "-ERR the key ")
        },
    },
    Allowed {
        sentence: "With `WATCH` that would be a lie: then `EXEC` is an error, unless all commands of the \
                   transaction and the `WATCH` name the same key, or a watched key has changed.",
        ends: true,
        is: |difference| difference.ours_begins("-ERR EXEC after WATCH is atomic on one key only"),
    },
    Allowed {
        sentence: "`WATCH` of a key that is missing does not see that others set the key and deleted it \
                   again before `EXEC`; Redis does.",
        ends: true,
        is: came_and_went,
    },
    Allowed {
        sentence: "`MSETNX` of several keys would lie, so it is an error.",
        ends: true,
        is: |difference| contains(difference.ours, "-ERR MSETNX of several keys"),
    },
    Allowed {
        sentence: "`CLIENT`, `AUTH` and `HELLO` in a transaction are queued, and each of them is an error \
                   in the answer of `EXEC`; the other commands are executed.",
        ends: true,
        is: |difference| {
            contains(difference.ours, " is not possible in a transaction of this gateway")
        },
    },
    Allowed {
        sentence: "sums are exact, with 17 digits behind the point, and numbers of 10^21 or more are an \
                   error; Redis reckons with 80 bits and shows the rounded last digits.",
        ends: true,
        is: |difference| {
            let adds = |(_, request): (usize, &Request)| request.word(0) == "incrbyfloat";
            difference.before().any(adds) && are_close(difference)
        },
    },
    Allowed {
        sentence: "There is one database, 0.",
        ends: true,
        is: |difference| {
            let is_other =
                |(_, request): (usize, &Request)| request.word(0) == "copy" && request.has("db");
            difference.before().any(is_other)
                && contains(difference.ours, "-ERR DB index is out of range")
        },
    },
    Allowed {
        sentence: "`ENCODING` is told by the value, so `raw` only if it is long",
        ends: false,
        is: |difference| {
            // Of one, or among the answers of a transaction.
            let is_encoding =
                |line: &str| ["raw", "embstr", "int"].contains(&line) || line.starts_with('$');
            let asks = |(_, request): (usize, &Request)| request.has("encoding");
            difference.before().any(asks)
                && lines_fit(difference, |ours, theirs| {
                    ours == theirs || is_encoding(ours) && is_encoding(theirs)
                })
        },
    },
    Allowed {
        sentence: "`REFCOUNT` is 1",
        ends: false,
        is: |difference| {
            let asks = |(_, request): (usize, &Request)| request.has("refcount");
            difference.before().any(asks)
                && lines_fit(difference, |ours, theirs| ours == theirs || ours == ":1")
        },
    },
    Allowed {
        sentence: "`IDLETIME` as this gateway knows it",
        ends: false,
        is: |difference| {
            let asks = |(_, request): (usize, &Request)| request.has("idletime");
            let number = |line: &str| line.strip_prefix(':').and_then(|n| n.parse::<u64>().ok());
            difference.before().any(asks)
                && lines_fit(difference, |ours, theirs| {
                    ours == theirs
                        || number(ours).zip(number(theirs)).is_some_and(|(a, b)| a.max(b) < 60)
                })
        },
    },
    Allowed {
        sentence: "of the next keys of a scan that goes round and round",
        ends: true,
        is: |difference| {
            difference.asked().word(0) == "exec"
                && difference.before().any(|(_, request)| request.word(0) == "randomkey")
        },
    },
    Allowed {
        sentence: "| `COMMAND` `COUNT` `INFO` `LIST` `DOCS` `GETKEYS` | of these commands |",
        ends: true,
        is: |difference| {
            let is_about_commands = |(_, request): (usize, &Request)| request.word(0) == "command";
            ["command", "exec"].contains(&difference.asked().word(0).as_str())
                && difference.before().any(is_about_commands)
                && difference.ours[0] == difference.theirs[0]
        },
    },
    Allowed {
        sentence: "Keys that have expired are not counted, which `DBSIZE` of Redis does until it deletes \
                   them.",
        ends: false,
        is: |difference| {
            let number = |answer: &[u8]| {
                text(answer).trim().strip_prefix(':').and_then(|number| number.parse::<i64>().ok())
            };
            let is_past = |(_, request): (usize, &Request)| {
                ["exat", "pxat"].iter().any(|unit| request.has(unit))
            };
            difference.asked().word(0) == "dbsize"
                && number(difference.ours) < number(difference.theirs)
                && difference.before().any(is_past)
        },
    },
    Allowed {
        sentence: "Bytes of a request that are no UTF-8 are shown as `�` in an error.",
        ends: false,
        is: |difference| {
            difference.ours_begins("-") && text(difference.ours) == text(difference.theirs)
        },
    },
];

fn contains(answer: &[u8], part: &str) -> bool {
    text(answer).contains(part)
}

/// Whether answers are the same, line by line, but for the last digits of numbers.
fn are_close(difference: &Difference<'_>) -> bool {
    if contains(difference.ours, "-ERR this gateway adds numbers exactly") {
        return true;
    }
    let is_close = |ours: &str, theirs: &str| {
        let number = |line: &str| line.trim_start_matches(':').parse::<f64>().ok();
        let apart = number(ours).zip(number(theirs)).map(|(a, b)| (a - b).abs() / b.abs());
        apart.is_some_and(|apart| apart < 1e-12)
    };
    // In a transaction, what is made of such a number may follow it.
    let [ours, theirs] = [difference.ours, difference.theirs].map(text);
    let is_other = |(ours, theirs): (&str, &str)| ours != theirs && is_close(ours, theirs);
    if difference.asked().word(0) == "exec" && ours.lines().zip(theirs.lines()).any(is_other) {
        return true;
    }
    lines_fit(difference, |ours, theirs| {
        let are_lengths = ours.starts_with('$') && theirs.starts_with('$');
        ours == theirs || are_lengths || is_close(ours, theirs)
    })
}

/// Whether answers have as many lines, each of which fits the other one.
fn lines_fit(difference: &Difference<'_>, fit: impl Fn(&str, &str) -> bool) -> bool {
    let [ours, theirs] = [difference.ours, difference.theirs].map(text);
    ours.lines().count() == theirs.lines().count()
        && ours.lines().zip(theirs.lines()).all(|(ours, theirs)| fit(ours, theirs))
}

/// Whether an EXEC was done here and not there, after a watched key that was missing came and went.
fn came_and_went(difference: &Difference<'_>) -> bool {
    let is_null = difference.theirs == b"*-1\r\n" || difference.theirs == b"_\r\n";
    if difference.asked().word(0) != "exec" || !is_null {
        return false;
    }
    let me = difference.steps[difference.step].client;
    let since = difference.before().rev().skip(1);
    let since = since.take_while(|(client, request)| *client != me || request.word(0) != "exec");
    let (mut watched, mut changes) = (Vec::new(), Vec::new());
    for (client, request) in since {
        match request.word(0).as_str() {
            "watch" if client == me => watched.extend(&request.words[1..]),
            "flushall" | "flushdb" | "del" | "unlink" | "getdel" | "rename" | "renamenx"
            | "expire" | "pexpire" | "expireat" | "pexpireat" | "getex" | "set" => {
                changes.push(request)
            }
            _ => (),
        }
    }
    let names = |request: &&Request| {
        request.word(0).starts_with("flush")
            || request.words[1..].iter().any(|word| watched.contains(&word))
    };
    changes.iter().any(names)
}
