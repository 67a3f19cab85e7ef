//! The modules that a module may use, in crates that have an order.

use super::Finding;
use crate::modules::{Uses, uses_by_folder};
use crate::tree::Tree;

/// The order of the modules in a folder.
struct Layers {
    /// With `/` at its end.
    folder: &'static str,
    /// Lowest first. A module uses modules of the layers below; modules of one layer do not use
    /// each other.
    order: &'static [&'static [&'static str]],
    /// Uses that the order allows and this rule forbids: user and used.
    never: &'static [(&'static str, &'static str)],
    /// Uses against the order that are still to be turned round. The list only shrinks.
    known: &'static [(&'static str, &'static str)],
    /// Whether each module must have a place in the order. Otherwise modules without a place are
    /// free.
    whole: bool,
}

const LAYERS: [Layers; 16] = [
    Layers {
        folder: "crates/fabric/src/",
        order: &[
            &["addr", "bounds", "buf", "counters", "fork", "limits", "sync", "zeroed"],
            &["accepting", "error", "idle", "rate_limit", "rights"],
            &["networks"],
            &["fabric"],
            &["messages"],
            &["pass_on"],
            &["shm", "sim"],
            &["lanes"],
            // A process that uses a network also maps the memory of its own host.
            &["away", "prefetch"],
            &["tcp", "verbs"],
        ],
        never: &[],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "crates/fabric/src/shm/",
        order: &[
            &["copy", "pages", "words"],
            &["chase", "region", "ring"],
            &["bell"],
            &["backoff"],
            &["parking"],
            &["endpoint", "mailbox"],
            &["limit", "messages", "now", "still"],
            &["thread"],
        ],
        never: &[],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "crates/fabric/src/sim/",
        order: &[
            &["faults", "memory", "profile", "verb"],
            &["card", "mailboxes", "nic", "process", "queue", "watch"],
            &["state"],
            &["datagram", "flight", "posted"],
            &["endpoint"],
            &["connection", "many", "messages"],
            &["world"],
            &["card_ops", "shared", "stop"],
        ],
        never: &[],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "crates/fabric/src/verbs/",
        order: &[
            &["address", "error", "routing_header"],
            &["setup", "sys"],
            &["device", "pool"],
            &["flights", "host"],
            &["link"],
            &["engine"],
            &["completion", "datagrams", "endpoint"],
            &["posting"],
            &["one_sided"],
        ],
        never: &[],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "crates/fabric/src/tcp/",
        order: &[
            &["frame", "planted", "socket", "turns", "unawaited"],
            &["company", "error", "keys", "sealed"],
            &["stream"],
            &["noise"],
            &["admission", "setup"],
            &["letters", "pushed"],
            &["lent", "link"],
            &["connection", "engine", "mailbox"],
            &["inbox", "messages"],
            &["drive"],
            &["seat"],
            &["serving", "thread"],
            &["agent", "endpoint", "fuzzing"],
        ],
        never: &[],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "crates/gateway/src/",
        order: &[
            &["address", "failure", "item", "limits"],
            &[
                "clients", "copies", "cursors", "error", "figures", "input", "looks", "pace",
                "turns", "updating", "uses",
            ],
            &["load"],
            &["password", "slowlog", "store", "tls"],
            &["protocol"],
            &["stream"],
            &["context"],
            &["incoming", "metrics", "output"],
            &["gets", "http"],
            &["memcached", "resp"],
            &["connection", "fuzzing"],
            &["thread"],
            &["gateway"],
        ],
        never: &[],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "crates/engines/src/",
        order: &[
            &[
                "checksum", "key_hash", "limits", "lines", "planted", "room", "secret", "size",
                "spare", "sync", "value",
            ],
            &["error"],
            &["functions"],
            &["operation"],
            &["effect", "kv", "region"],
            &["epoch", "log", "scan", "versions"],
            &["requests"],
            &["net", "serve"],
            &["engine"],
            &["herd", "kv_direct", "nessie", "pilaf"],
            &["nessie_server"],
            &["nessie_hybrid"],
            &["registry"],
        ],
        never: &[],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "crates/engines/src/nessie/",
        order: &[
            &["layout"],
            &["client", "options"],
            &["memory"],
            &["ops"],
            &["check"],
            &["published"],
            &["any", "kv"],
            &["table"],
        ],
        never: &[],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "crates/engines/src/nessie/layout/",
        order: &[
            &["moves"],
            &["geometry"],
            &["ite"],
            &["dte", "marks", "slab"],
            &["ledger"],
            &["hash"],
        ],
        never: &[],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "crates/engines/src/nessie/client/",
        order: &[
            &["balance", "cache", "look", "pins", "searches", "shortlist", "turns", "uses"],
            &["alloc", "claims", "marking", "worth"],
            &["batch", "waits"],
        ],
        never: &[],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "crates/engines/src/nessie/memory/",
        order: &[
            &["lease"],
            &["left"],
            &["victims"],
            &["evict"],
            &["empty"],
            &["reclaim"],
            &["balance"],
            &["allocate"],
        ],
        never: &[],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "crates/engines/src/nessie/ops/",
        order: &[
            &["read"],
            &["remembered", "tentative"],
            &["migrate"],
            &["get"],
            &["draft", "pin"],
            &["insert"],
            &["put"],
            &["batch", "conditional", "delete", "reserve", "scan"],
        ],
        never: &[],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "crates/engines/src/nessie/check/",
        order: &[&["report"], &["rules"], &["walk"], &["expire", "own_rules", "scrub", "verify"]],
        never: &[],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "crates/engines/src/nessie/published/",
        order: &[
            &["entry"],
            &["client"],
            &["cache"],
            &["read"],
            &["settle"],
            &["delete", "draft"],
            &["get", "insert", "migrate"],
            &["put"],
            &["conditional"],
            &["check"],
            &["scrub"],
        ],
        never: &[],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "crates/loch/src/",
        order: &[
            &["error", "limits"],
            &["private"],
            &["layout", "secret_file"],
            &["session", "simulated"],
            &["client", "node"],
            &["embedded"],
            &["api"],
            &["fuzzing"],
        ],
        never: &[("api", "node")],
        known: &[],
        whole: true,
    },
    Layers {
        folder: "models/src/",
        order: &[
            &["fingerprint", "script", "story"],
            &["explore", "monitor"],
            &["loch", "published"],
            &["configurations"],
            &["report"],
        ],
        never: &[],
        known: &[],
        whole: true,
    },
];

/// A module uses modules of the layers below its own.
pub fn modules_use_those_below(tree: &Tree) -> Vec<Finding> {
    let uses = uses_by_folder(tree);
    let there = LAYERS.iter().filter_map(|layers| Some((layers, uses.get(layers.folder)?)));
    there.flat_map(|(layers, uses)| layers.check(tree, uses)).collect()
}

impl Layers {
    fn place(&self, module: &str) -> Option<usize> {
        self.order.iter().position(|layer| layer.contains(&module))
    }

    fn check(&self, tree: &Tree, uses: &Uses<'_>) -> Vec<Finding> {
        let mut found = self.without_place(tree);
        let mut turned = self.known.to_vec();
        for (from, used) in uses {
            for (to, (file, line)) in used {
                let arrow = (&from[..], &to[..]);
                let places = self.place(from).zip(self.place(to));
                let is_up = places.is_some_and(|(from, to)| to >= from);
                let is_known = self.known.contains(&arrow);
                turned.retain(|known| *known != arrow);
                if self.never.contains(&arrow) || (is_up && !is_known) {
                    let message = format!("`{from}` uses `{to}`, which is not below it");
                    let fix = "move what it needs down, or take it as a trait";
                    found.push(Finding::new(file, *line, "layers", message, fix));
                }
            }
        }
        found.extend(turned.into_iter().map(|(from, to)| Finding {
            path: file!().to_owned(),
            line: 1,
            rule: "layers",
            message: format!("`{from}` of {} uses `{to}` no more", self.folder),
            fix: "take it out of the known uses",
            warning: false,
        }));
        found
    }

    fn without_place(&self, tree: &Tree) -> Vec<Finding> {
        let mut found = Vec::new();
        for (file, rust) in tree.rust(self.folder).filter(|_| self.whole) {
            let name = file.path[self.folder.len()..].trim_end_matches(".rs");
            let name = name.strip_suffix("/mod").unwrap_or(name);
            let is_root = name.contains('/') || ["lib", "main", "mod"].contains(&name);
            if !is_root && rust.product_lines() > 0 && self.place(name).is_none() {
                let message = format!("module `{name}` has no place among the layers");
                let fix = "give it one in xtask/src/tidy/layers.rs";
                found.push(Finding::new(file, 0, "layers", message, fix));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANTED: Layers = Layers {
        folder: "crates/a/src/",
        order: &[&["layout"], &["client", "node"], &["api"]],
        never: &[("api", "node")],
        known: &[("layout", "api")],
        whole: true,
    };

    const GOOD: [(&str, &str); 6] = [
        ("crates/a/src/lib.rs", "mod layout;\nmod client;\nmod node;\nmod api;\n"),
        ("crates/a/src/layout.rs", "use crate::api;\n"),
        ("crates/a/src/client/mod.rs", "mod get;\n"),
        ("crates/a/src/client/get.rs", "use crate::layout::Header;\nuse super::Client;\n"),
        ("crates/a/src/node.rs", "use crate::layout::Header;\n"),
        ("crates/a/src/api.rs", "use crate::client;\n"),
    ];

    /// The findings if the file at `path` has this text.
    fn planted(path: &str, text: &'static str) -> Vec<String> {
        let mut files = GOOD;
        let file = files.iter_mut().find(|file| file.0 == path).expect("a file of the sample");
        file.1 = text;
        found(&files)
    }

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::of(files);
        let uses = uses_by_folder(&tree);
        let found = PLANTED.check(&tree, &uses["crates/a/src/"]);
        found.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_module_uses_those_below_it() {
        assert_eq!(found(&GOOD), [""; 0]);
        let up = planted("crates/a/src/layout.rs", "use crate::{api, node::Node};\n");
        assert_eq!(up, ["`layout` uses `node`, which is not below it"]);
        let beside = planted("crates/a/src/client/get.rs", "fn f() { crate::node::f(); }\n");
        assert_eq!(beside, ["`client` uses `node`, which is not below it"]);
        let never = planted("crates/a/src/api.rs", "use crate::node::Node;\n");
        assert_eq!(never, ["`api` uses `node`, which is not below it"]);
    }

    #[test]
    fn a_known_use_that_is_gone_and_a_module_without_a_place_are_told() {
        let turned = planted("crates/a/src/layout.rs", "");
        assert_eq!(turned, ["`layout` of crates/a/src/ uses `api` no more"]);
        let lease = [&GOOD[..], &[("crates/a/src/lease.rs", "pub struct Lease;\n")]].concat();
        assert_eq!(found(&lease), ["module `lease` has no place among the layers"]);
    }
}
