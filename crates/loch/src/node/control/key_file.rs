//! Files with the secrets by which a node proves what it is.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::{Error, Result, private};

/// Opens a file that only this node's user and root may read.
///
/// # Errors
/// [`Error::Config`] if other users may read it.
pub(super) fn check_private(field: &str, path: &Path) -> Result<std::fs::File> {
    let file = private::open_named(path).map_err(|e| {
        let path = path.display();
        let remedy = "make it, or name one that this node's user can read";
        Error::config(field, format!("cannot open {path}: {e}; {remedy}"))
    })?;
    let facts = file.metadata().map_err(Error::os("stat", path))?;
    let (mode, owner, own) = (facts.mode(), facts.uid(), rustix::process::geteuid().as_raw());
    let path = path.display();
    let problem = if mode & 0o077 != 0 {
        format!("others may read {path} (mode {:o}): chmod 600 {path}", mode & 0o777)
    } else if owner != own && owner != 0 {
        format!(
            "{path} belongs to user {owner}, who may read it, and not to user {own}: chown {own} {path}"
        )
    } else {
        return Ok(file);
    };
    Err(Error::config(field, problem))
}
