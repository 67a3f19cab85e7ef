//! The files the rules look at.
//!
//! Owns reading: rules see paths and text, so that their tests need no file system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};

use crate::rust_source::{DeclaredModule, RustSource};

/// The files that are tracked, or would be after `git add --all`.
pub struct Tree {
    pub files: Vec<File>,
    /// Words of this checkout that must not be published, one a line in `.git/info/tidy-words`.
    pub private_words: Vec<String>,
}

/// A text file.
pub struct File {
    /// Relative to the root of the checkout, with `/`.
    pub path: String,
    pub text: String,
    /// Present for `.rs` files.
    pub rust: Option<RustSource>,
}

impl Tree {
    /// Reads the checkout that the program is run in. (Not the one it was built in: checkouts may
    /// share a target folder.)
    pub fn of_checkout() -> Result<Self> {
        let root = git(Path::new("."), &["rev-parse", "--show-toplevel"])?;
        let root = PathBuf::from(root.trim_end());
        let listed = git(&root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
        let mut sources = Vec::new();
        for path in listed.split('\0').filter(|path| !path.is_empty()) {
            // A file that is tracked and deleted, a submodule or a symlink to a folder has no text.
            let on_disk = root.join(path);
            if !on_disk.is_file() {
                continue;
            }
            let bytes = fs::read(&on_disk).with_context(|| format!("reading {path}"))?;
            // Binary files stay in the tree with no text: links point at pictures.
            let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
            sources.push((path.to_owned(), text.unwrap_or_default()));
        }
        let mut tree = Self::new(sources)?;
        let words =
            PathBuf::from(git(&root, &["rev-parse", "--git-path", "info/tidy-words"])?.trim());
        if let Ok(words) = fs::read_to_string(root.join(words)) {
            tree.private_words = words.lines().filter(|w| !w.is_empty()).map(Into::into).collect();
        }
        Ok(tree)
    }

    fn new(sources: Vec<(String, String)>) -> Result<Self> {
        let mut files = Vec::new();
        for (path, text) in sources {
            let parse = || RustSource::parse(&text).map_err(|error| anyhow!("{path}: {error}"));
            let rust = path.ends_with(".rs").then(parse).transpose()?;
            files.push(File { path, text, rust });
        }
        let tests: Vec<String> = files.iter().flat_map(File::test_modules).collect();
        for file in &mut files {
            if let Some(rust) = &mut file.rust
                && (is_test_path(&file.path) || tests.iter().any(|t| is_module(&file.path, t)))
            {
                rust.mark_all_test();
            }
        }
        Ok(Self { files, private_words: Vec::new() })
    }

    /// The files of `(path, text)`, for the tests of rules.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let sources = files.iter().map(|&(path, text)| (path.into(), text.into())).collect();
        Self::new(sources).expect("Rust files of the sample have Rust's tokens")
    }

    /// The Rust files below `folder`, which ends in `/` or is empty for all.
    pub fn rust<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a File, &'a RustSource)> {
        let below = self.files.iter().filter(move |file| file.path.starts_with(folder));
        below.filter_map(|file| Some((file, file.rust.as_ref()?)))
    }
}

impl File {
    /// The folder of the modules that this file declares, without a `/` at its end.
    pub fn module_folder(&self) -> String {
        let (folder, name) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        // The root of a test, bench or program may have any name.
        let is_root = ["tests", "benches", "bin"].iter().any(|kind| folder.ends_with(kind));
        match name {
            "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
            _ if is_root && !folder.contains("src/") => folder.to_owned(),
            _ => self.path.trim_end_matches(".rs").to_owned(),
        }
    }

    /// The paths at which the file of a module that this file declares may lie, if its other
    /// modules lie in `folder`.
    pub fn module_paths(&self, folder: &str, module: &DeclaredModule) -> Vec<String> {
        if let Some(path) = &module.path {
            return resolve(&self.path, path).into_iter().collect();
        }
        let name = [&module.within[..], std::slice::from_ref(&module.name)].concat().join("/");
        vec![format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")]
    }

    /// The modules that this file declares for tests only, as paths without `.rs`.
    fn test_modules(&self) -> Vec<String> {
        let declared = self.rust.iter().flat_map(|rust| {
            rust.modules.iter().filter(|module| rust.is_test(module.line) && !module.has_body)
        });
        declared.map(|module| format!("{}/{}", self.module_folder(), module.name)).collect()
    }
}

/// Whether cargo builds the file for tests or benches only. (A crate that tests use is none of
/// these: `tests/history/src/lib.rs`. The example engine is a module of a library.)
fn is_test_path(path: &str) -> bool {
    if path.starts_with("tests/example/") {
        return false;
    }
    let mut folders: Vec<&str> = path.split('/').rev().take_while(|&name| name != "src").collect();
    let name = folders.remove(0);
    name == "tests.rs" || folders.iter().any(|&f| f == "tests" || f == "benches")
}

/// Whether `path` is the module `module`, a path without `.rs`, or below it.
fn is_module(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// The path in the repository of the `target` in the file `from`; `None` if it leads out.
pub fn resolve(from: &str, target: &str) -> Option<String> {
    let mut folders: Vec<&str> = if target.starts_with('/') {
        Vec::new()
    } else {
        from.rsplit_once('/').map_or(Vec::new(), |(folder, _)| folder.split('/').collect())
    };
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = folders.pop()?,
            part => folders.push(part),
        }
    }
    Some(folders.join("/"))
}

fn git(root: &Path, args: &[&str]) -> Result<String> {
    let out = Command::new("git").current_dir(root).args(args).output().context("running git")?;
    let stderr = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "git {}: {}", args.join(" "), stderr.trim());
    String::from_utf8(out.stdout).context("git printed a name that is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_code_is_known_by_its_place_and_its_declaration() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "#[cfg(test)]\nmod model;\nmod get;\n"),
            ("crates/a/src/model.rs", "fn f() {}\n"),
            ("crates/a/src/model/deep.rs", "fn f() {}\n"),
            ("crates/a/src/get.rs", "#[cfg(test)]\nmod oracle;\n"),
            ("crates/a/src/get/oracle.rs", "fn f() {}\n"),
            ("crates/a/tests/whole.rs", "fn f() {}\n"),
            ("crates/a/src/modeller.rs", "fn f() {}\n"),
            ("tests/history/src/lib.rs", "fn f() {}\n"),
            ("tests/example/mod.rs", "fn f() {}\n"),
        ]);
        let test = |path: &str| {
            let (_, rust) = tree.rust("").find(|(f, _)| f.path == path).expect(path);
            *rust.test.last().expect("a line")
        };
        assert!(test("crates/a/src/model.rs"));
        assert!(test("crates/a/src/model/deep.rs"));
        assert!(test("crates/a/src/get/oracle.rs"));
        assert!(test("crates/a/tests/whole.rs"));
        assert!(!test("tests/history/src/lib.rs"));
        assert!(!test("tests/example/mod.rs"));
        assert!(!test("crates/a/src/lib.rs"));
        assert!(!test("crates/a/src/modeller.rs"));
    }
}
