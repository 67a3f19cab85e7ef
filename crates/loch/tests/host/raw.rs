//! The handshake spoken by hand, so that tests can say what no client would.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// A connection to a node's socket.
pub struct Raw {
    pub stream: UnixStream,
}

impl Raw {
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        Self { stream }
    }

    /// A connection that was welcomed.
    pub fn admitted(socket: &Path) -> Self {
        let mut raw = Self::connect(socket);
        let welcome = raw.ask(&hello(PROTOCOL)).unwrap();
        assert_eq!(welcome["welcome"]["protocol"], PROTOCOL, "{welcome}");
        raw
    }

    /// Sends bytes; a node that has closed already is no error.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub fn say(&mut self, message: &Value) {
        self.send(&frame(message));
    }

    pub fn ask(&mut self, message: &Value) -> Option<Value> {
        self.say(message);
        self.answer()
    }

    /// The next answer; `None` if the node has closed.
    pub fn answer(&mut self) -> Option<Value> {
        let mut len = [0; 4];
        if !self.fill(&mut len) {
            return None;
        }
        let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
        assert!(self.fill(&mut bytes), "half a frame");
        Some(serde_json::from_slice(&bytes).unwrap())
    }

    fn fill(&mut self, bytes: &mut [u8]) -> bool {
        match self.stream.read_exact(bytes) {
            Ok(()) => true,
            Err(error) => {
                let closed = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
                assert!(closed.contains(&error.kind()), "{error}");
                false
            }
        }
    }

    /// The code of the refusal that comes next, and that nothing comes after it.
    pub fn refusal(&mut self) -> String {
        let answer = self.answer().expect("an answer");
        let code = answer["refused"]["code"].as_str();
        let code = code.unwrap_or_else(|| panic!("{answer}")).to_owned();
        assert_eq!(self.answer(), None, "it closes");
        code
    }
}

/// The version of the protocol of this release.
pub const PROTOCOL: u32 = 5;

pub fn hello(protocol: u32) -> Value {
    json!({"hello": {"protocol": protocol, "client": "a test", "read_only": false}})
}

pub fn frame(message: &Value) -> Vec<u8> {
    let text = message.to_string();
    [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}
