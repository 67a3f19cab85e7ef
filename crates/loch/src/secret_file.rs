//! Files with secrets: what nodes and gateways prove themselves with, and ask of others.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::private::{self, ROOT};

/// The bits of a mode by which a file can be used by somebody else than its owner.
const OTHERS: u32 = 0o077;
/// The bit of a mode by which the file's group reads it.
const GROUP_READS: u32 = 0o040;

/// The facts of a file that say who can read it.
#[derive(Clone, Copy, Debug)]
struct Found {
    mode: u32,
    owner: u32,
    group: u32,
}

/// Opens a file that only this process's user and root may read; links are allowed. As
/// orchestrators mount secrets, the file may also be root's for a group of this process to read:
/// root has chosen the group.
///
/// # Errors
/// The problem in words, with a way out.
#[doc(hidden)]
pub fn open_secret(path: &Path) -> Result<File, String> {
    let shown = path.display();
    let failed = |error: std::io::Error| {
        format!("cannot open {shown}: {error}; make it, or name one that this user can read")
    };
    let file = private::open_named(path).map_err(failed)?;
    let there = file.metadata().map_err(failed)?;
    let found = Found { mode: there.mode() & 0o777, owner: there.uid(), group: there.gid() };
    let mut groups = vec![rustix::process::getegid()];
    groups.extend(rustix::process::getgroups().unwrap_or_default());
    let groups: Vec<u32> = groups.iter().map(|group| group.as_raw()).collect();
    let problem = match private::stands_for_others(found.owner) {
        true => Some(Problem::Another),
        false => problem(found, private::user(), &groups),
    };
    match problem {
        None => Ok(file),
        Some(problem) => Err(in_words(problem, found, &groups, path)),
    }
}

/// The problem, with a way out.
fn in_words(problem: Problem, found: Found, groups: &[u32], path: &Path) -> String {
    let (shown, Found { mode, owner, group }) = (path.display(), found);
    let (who, rights) = match problem {
        Problem::Another => {
            let theirs = format!("{shown} belongs to user {owner}, who may read it");
            let own = private::user();
            return match private::unnumbered(owner) {
                Some(why) => format!("{theirs}; {why}"),
                None => format!("{theirs}, and not to user {own}: chown {own} {shown}"),
            };
        }
        Problem::Open(rights) if rights & 0o007 != 0 => ("others".to_owned(), rights),
        Problem::Open(rights) if groups.contains(&group) => (format!("group {group}"), rights >> 3),
        Problem::Open(rights) => {
            (format!("group {group}, which this process is not in,"), rights >> 3)
        }
    };
    let what = match () {
        () if rights & 0o2 != 0 => "change",
        () if rights & 0o4 != 0 => "read",
        () => "execute",
    };
    format!(
        "{who} may {what} {shown} (mode {mode:o}): chmod 600 {shown}, or mount it with mode 0440 for \
         root and a group of this process"
    )
}

/// The reason why somebody else can read a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Problem {
    /// It belongs to another user.
    Another,
    /// Its mode gives these rights too many.
    Open(u32),
}

fn problem(found: Found, user: u32, groups: &[u32]) -> Option<Problem> {
    let Found { mode, owner, group } = found;
    if owner != user && owner != ROOT {
        return Some(Problem::Another);
    }
    let for_group = owner == ROOT && groups.contains(&group);
    let forbidden = if for_group { OTHERS & !GROUP_READS } else { OTHERS };
    (mode & forbidden != 0).then_some(Problem::Open(mode & forbidden))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_secret_is_read_by_its_user_and_by_a_group_that_root_has_chosen() {
        let (user, groups) = (1000, [1000, 2000]);
        let refused = |owner, group, mode| problem(Found { mode, owner, group }, user, &groups);
        for (owner, group, mode) in [
            (1000, 1000, 0o600),
            (1000, 5, 0o400),
            (ROOT, ROOT, 0o400),
            (ROOT, 2000, 0o440),
            (ROOT, 1000, 0o640),
        ] {
            assert_eq!(refused(owner, group, mode), None, "{owner}:{group} {mode:o}");
        }
        for (owner, group, mode) in [
            // A group that this process is not in, and rights beyond reading.
            (ROOT, 5, 0o440),
            (ROOT, 2000, 0o444),
            (ROOT, 2000, 0o460),
            (ROOT, 2000, 0o441),
            // The user may have a group that others are in, too.
            (1000, 1000, 0o440),
            (1000, 1000, 0o604),
        ] {
            let refused = refused(owner, group, mode);
            assert!(matches!(refused, Some(Problem::Open(_))), "{owner}:{group} {mode:o}");
        }
        assert_eq!(refused(1001, 2000, 0o440), Some(Problem::Another));
    }

    /// The faults of a group were said to be those of others, and no group was named.
    #[test]
    fn a_secret_that_is_open_names_who_may_do_what() {
        let told = |group, mode| {
            let (found, groups) = (Found { mode, owner: ROOT, group }, [1000, 2000]);
            let problem = problem(found, 1000, &groups).expect("it is open");
            in_words(problem, found, &groups, Path::new("/f"))
        };
        for (group, mode, words) in [
            (5, 0o440, "group 5, which this process is not in, may read /f (mode 440)"),
            (2000, 0o460, "group 2000 may change /f (mode 460)"),
            (2000, 0o450, "group 2000 may execute /f (mode 450)"),
            (2000, 0o444, "others may read /f (mode 444)"),
            (2000, 0o442, "others may change /f (mode 442)"),
        ] {
            let text = told(group, mode);
            assert!(text.contains(words) && text.contains("chmod 600"), "{text}");
        }
    }

    /// Kubernetes mounts a secret as a link to a file in a folder that is itself a link.
    #[test]
    fn a_mounted_secret_is_read_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("..2026_11_29");
        std::fs::create_dir(&there).unwrap();
        std::fs::write(there.join("password"), "swordfish").unwrap();
        symlink("..2026_11_29", dir.path().join("..data")).unwrap();
        let path = dir.path().join("password");
        symlink("..data/password", &path).unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            open_secret(&path)
        };
        let text = std::io::read_to_string(with_mode(0o400).unwrap()).unwrap();
        assert_eq!(text, "swordfish");
        let open = with_mode(0o444).unwrap_err();
        assert!(open.contains("mode 444") && open.contains("chmod 600"), "{open}");
        let folder = open_secret(dir.path()).unwrap_err();
        assert!(folder.contains("it is a folder") && folder.contains("name one"), "{folder}");
    }
}
