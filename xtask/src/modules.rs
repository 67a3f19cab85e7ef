//! The modules of each crate, and the uses between them.
//!
//! The paths that files import or write out show the uses; names that modules re-export are
//! followed. A file that a `#[path]` leads to is the module that it is declared as. Tests do not
//! count: code that is built only for tests may use any module.

use std::collections::{BTreeMap, BTreeSet};

use crate::rust_source::{DeclaredModule, RustSource};
use crate::tree::{File, Tree};

/// A module's path inside its crate; empty for its root.
type Module = Vec<String>;

/// The modules of a folder, each with the modules beside it that it uses, and where.
pub type Uses<'a> = BTreeMap<String, BTreeMap<String, Place<'a>>>;

/// A file, and a line in it.
pub type Place<'a> = (&'a File, usize);

/// The modules of one crate.
struct Crate<'a> {
    files: Vec<(Module, &'a File)>,
    /// All modules, also those with a body in the file of another.
    modules: BTreeSet<Module>,
    /// By module and name, the paths that a `use` brings it from: more than one under `cfg`.
    imported: BTreeMap<(Module, &'a str), Vec<&'a [String]>>,
}

/// The uses between the modules of each folder (`crates/fabric/src/shm/`). A folder counts as one
/// module for the modules beside it; a module and those inside it may use each other.
pub fn uses_by_folder(tree: &Tree) -> BTreeMap<String, Uses<'_>> {
    let mut folders = BTreeMap::new();
    for (root, files) in crates(tree) {
        Crate::of(files).add_uses(root, &mut folders);
    }
    folders
}

/// The imports of all names of a module of the same crate (`use super::*`). They hide which modules
/// are used.
pub fn globs(tree: &Tree) -> Vec<Place<'_>> {
    crates(tree).into_values().flat_map(|files| Crate::of(files).globs()).collect()
}

/// The files of each crate, by the crate's `src/`.
fn crates(tree: &Tree) -> BTreeMap<&str, Vec<(Module, &File)>> {
    let mut crates: BTreeMap<&str, Vec<(Module, &File)>> = BTreeMap::new();
    for (file, _) in tree.rust("") {
        if let Some(at) = file.path.rfind("/src/") {
            let (root, path) = file.path.split_at(at + "/src/".len());
            crates.entry(root).or_default().push((module_of(path), file));
        }
    }
    for files in crates.values_mut() {
        // A file that is declared elsewhere is not the module of its place.
        let moved = declared_by_path(tree, files);
        files.retain(|(_, file)| !moved.iter().any(|(_, other)| other.path == file.path));
        files.extend(declared_by_path(tree, files));
    }
    crates
}

/// The files that a `#[path]` in one of these files leads to, and the modules below them.
fn declared_by_path<'a>(tree: &'a Tree, files: &[(Module, &'a File)]) -> Vec<(Module, &'a File)> {
    let mut found = Vec::new();
    for (module, file) in files {
        let declared = file.rust.iter().flat_map(|rust| &rust.modules);
        for inner in declared.filter(|inner| inner.path.is_some()) {
            add_module(tree, (module, file), &file.module_folder(), inner, &mut found);
        }
    }
    found
}

/// Adds the files of a module that `file` declares, and of the modules below it. The other modules
/// of `file` lie in `folder`.
fn add_module<'a>(
    tree: &'a Tree,
    (module, file): (&Module, &File),
    folder: &str,
    inner: &DeclaredModule,
    found: &mut Vec<(Module, &'a File)>,
) {
    let name = std::slice::from_ref(&inner.name);
    let module = [module, &inner.within[..], name].concat();
    let paths = file.module_paths(folder, inner);
    for (file, rust) in tree.rust("").filter(|(file, _)| paths.contains(&file.path)) {
        // A file at a `#[path]` has its modules beside it, whatever its name is.
        let beside = file.path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
        let folder = if inner.path.is_some() { beside } else { file.module_folder() };
        found.push((module.clone(), file));
        for inner in rust.modules.iter().filter(|inner| !inner.has_body) {
            add_module(tree, (&module, file), &folder, inner, found);
        }
    }
}

impl<'a> Crate<'a> {
    fn of(files: Vec<(Module, &'a File)>) -> Self {
        let mut modules: BTreeSet<Module> =
            files.iter().map(|(module, _)| module.clone()).collect();
        let mut imported = BTreeMap::new();
        for (module, file) in &files {
            let Some(rust) = &file.rust else { continue };
            for inner in rust.modules.iter().filter(|inner| inner.has_body) {
                let name = std::slice::from_ref(&inner.name);
                modules.insert([module, &inner.within[..], name].concat());
            }
            for path in rust.product_paths() {
                if let Some(name) = &path.imported_as {
                    let at = [&module[..], &path.within].concat();
                    let paths: &mut Vec<&[String]> = imported.entry((at, &name[..])).or_default();
                    paths.push(&path.segments);
                }
            }
        }
        Self { files, modules, imported }
    }

    /// A use counts between the modules of the innermost folder that both ends are in.
    fn add_uses(&self, root: &str, folders: &mut BTreeMap<String, Uses<'a>>) {
        for (module, file) in &self.files {
            for path in file.rust.iter().flat_map(RustSource::product_paths) {
                let from = [&module[..], &path.within].concat();
                for to in self.resolve(&from, &path.segments, 0) {
                    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                    let ends = (from.get(shared), to.get(shared));
                    let (Some(user), Some(used)) = ends else { continue };
                    let folder: String =
                        to[..shared].iter().map(|name| format!("{name}/")).collect();
                    let uses = folders.entry(format!("{root}{folder}")).or_default();
                    let uses = uses.entry(user.clone()).or_default();
                    uses.entry(used.clone()).or_insert((*file, path.line));
                }
            }
        }
    }

    fn globs(&self) -> Vec<Place<'a>> {
        let mut found = Vec::new();
        for (module, file) in &self.files {
            for path in file.rust.iter().flat_map(RustSource::product_paths) {
                let Some((star, of)) = path.segments.split_last() else { continue };
                let Some(last) = of.last().filter(|_| star == "*") else { continue };
                let from = [&module[..], &path.within].concat();
                // The names of an enum's variants are no module's.
                let is_module = |to: &Module| {
                    ["crate", "self", "super"].contains(&last.as_str()) || to.last() == Some(last)
                };
                if self.resolve(&from, of, 0).iter().any(is_module) {
                    found.push((*file, path.line));
                }
            }
        }
        found
    }

    /// The modules that a path leads to from `module`; none if it leads out of the crate, several
    /// if a name on the way is imported differently under different `cfg`s.
    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Vec<Module> {
        self.try_resolve(module, path, depth).unwrap_or_default()
    }

    fn try_resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<Vec<Module>> {
        // A bound, because names that import each other lead nowhere.
        const DEPTH_MAX: usize = 8;
        let (mut at, mut rest) = match path.first()?.as_str() {
            "crate" => (Module::new(), &path[1..]),
            "self" => (module.to_vec(), &path[1..]),
            "super" => (module.to_vec(), path),
            name if self.is_module(module, name) => (module.to_vec(), path),
            _ => return None,
        };
        while rest.first().is_some_and(|segment| segment == "super") {
            at.pop()?;
            rest = &rest[1..];
        }
        for (number, name) in rest.iter().enumerate() {
            if self.is_module(&at, name) {
                at.push(name.clone());
                continue;
            }
            let imported = self.imported.get(&(at.clone(), &name[..])).into_iter().flatten();
            let imported = imported.filter(|path| depth < DEPTH_MAX && path[..] != rest[number..]);
            let to: Vec<Module> =
                imported.flat_map(|path| self.resolve(&at, path, depth + 1)).collect();
            return Some(if to.is_empty() { vec![at] } else { to });
        }
        Some(vec![at])
    }

    fn is_module(&self, parent: &[String], name: &str) -> bool {
        self.modules.contains(&[parent, &[name.to_owned()]].concat())
    }
}

/// The module of a file, by its path below `src/`.
fn module_of(path: &str) -> Module {
    let path = path.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let names = path.split('/').filter(|_| !["lib", "main"].contains(&path));
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_found_in_modules_with_a_body_and_by_other_names() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "mod net;\nmod log;\nmod wire;\n"),
            ("crates/a/src/log.rs", "mod code {\n    use super::super::net::Link;\n}\n"),
            ("crates/a/src/net/mod.rs", "pub mod tcp;\npub use crate::wire::Frame as Link;\n"),
            ("crates/a/src/net/tcp.rs", "fn f() { crate::log::append(super::udp::g()); }\n"),
            ("crates/a/src/net/udp.rs", "pub fn g() {}\n"),
            ("crates/a/src/wire.rs", "pub struct Frame;\nuse std::net::TcpStream;\n"),
        ]);
        let mut found = Vec::new();
        for (folder, uses) in &uses_by_folder(&tree) {
            for (from, used) in uses {
                let used: Vec<&str> = used.keys().map(String::as_str).collect();
                found.push(format!("{folder} {from}: {}", used.join(" ")));
            }
        }
        let expected = [
            "crates/a/src/ log: wire",
            "crates/a/src/ net: log wire",
            "crates/a/src/net/ tcp: udp",
        ];
        assert_eq!(found, expected);
    }
}
