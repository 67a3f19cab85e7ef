//! The configurations of the tests in virtual machines can be planned: checked on every machine.
//! In guests it is found out a quarter of an hour later, and only where there is an emulator. So
//! can what the documents show, which nobody else starts.

#[path = "guest/config.rs"]
mod machines;
#[path = "../crates/loch/tests/guest/mod.rs"]
mod two_hosts;

use std::path::Path;
use std::process::Command;

use loch::NodeConfig;

const HOSTS: usize = machines::HOSTS;

fn check(who: &str, config: &NodeConfig) {
    if let Err(error) = config.check_tables() {
        panic!("{who}: its node will not start: {error}");
    }
}

#[test]
fn the_nodes_of_the_histories_of_two_machines_can_be() {
    let [secret, log] = ["/tmp/secret", "/tmp/log"].map(Path::new);
    for host in 1..=HOSTS {
        let config = machines::configuration(host, "verbs", secret, log);
        let config = NodeConfig::from_toml(&config).expect("it is a configuration");
        assert_eq!(config.cluster.len(), HOSTS);
        assert_eq!(config.listen, Some(machines::address(host, machines::CONTROL_PORT)));
        assert!(
            config.tables.iter().any(|table| table.engine.log().is_some_and(|it| it.folder == log))
        );
        check("tests/machines.rs", &config);
    }
}

#[test]
fn the_nodes_of_the_test_of_two_hosts_can_be() {
    for host in 1..=HOSTS {
        let config = two_hosts::config(host, "/tmp/secret".as_ref());
        assert_eq!(config.socket, two_hosts::socket(host));
        check("crates/loch/tests/two_hosts.rs", &config);
    }
}

#[test]
fn the_node_that_gets_a_strangers_datagrams_can_be() {
    let config = include_str!("../crates/loch/tests/guest/strangers.toml");
    let config = NodeConfig::from_toml(config).expect("it is a configuration");
    check("crates/loch/src/node/network/rights.rs", &config);
}

#[test]
fn the_nodes_of_the_documents_can_be() {
    for (document, text, examples) in [
        ("docs/deployment.md", include_str!("../docs/deployment.md"), 2),
        ("docs/operations.md", include_str!("../docs/operations.md"), 2),
        ("docs/configuration.md", include_str!("../docs/configuration.md"), 1),
    ] {
        let blocks = text.split("```toml\n").skip(1).map(|rest| rest.split("```").next());
        let blocks: Vec<&str> = blocks.flatten().collect();
        assert_eq!(blocks.len(), examples, "{document}");
        for block in blocks {
            let config = NodeConfig::from_toml(block);
            check(document, &config.unwrap_or_else(|error| panic!("{document}: {error}")));
        }
    }
}

/// The configuration that `vm/tests/node.sh` writes for a node of `hosts`, all engines.
fn configuration_of_scripts(hosts: usize, engines: &str) -> NodeConfig {
    let script = format!(". vm/tests/node.sh && configuration {engines}");
    let written = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .env("HOST", "1")
        .env("HOSTS", hosts.to_string())
        .output()
        .expect("there is bash");
    let said = String::from_utf8_lossy(&written.stderr);
    assert!(written.status.success(), "{said}");
    let text = String::from_utf8(written.stdout).expect("it is text");
    NodeConfig::from_toml(&text).expect("it is a configuration")
}

#[test]
fn the_nodes_of_the_scripts_can_be() {
    for (script, engines, tables) in [("bench.sh", "", 2), ("cluster.sh", "${served[@]}", 7)] {
        let config = configuration_of_scripts(HOSTS, engines);
        assert_eq!((config.cluster.len(), config.tables.len()), (HOSTS, tables), "{script}");
        check(script, &config);
    }
}
