//! What is installed under a prefix: a list of the files, with digests, and of the folders that
//! were made for them, so that an installation can be replaced and removed, and nothing else is.

use crate::install::{Error, below, failed};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The list, below the prefix.
const LIST: &str = ".oxccl-installed";

/// A list of installed files.
#[derive(Default)]
struct Listed {
    /// The files by their paths below the prefix, with the digests that they may have: two while
    /// one installation replaces another.
    files: BTreeMap<String, BTreeSet<String>>,
    /// The folders that were made, by their paths below the prefix; the prefix itself is `.`.
    folders: BTreeSet<String>,
}

impl Listed {
    /// Reads the list of a prefix; empty if nothing is installed there.
    fn read(prefix: &Path) -> Result<Self, Error> {
        let (list, mut listed) = (prefix.join(LIST), Self::default());
        if !list.exists() {
            return Ok(listed);
        }
        let text = std::fs::read_to_string(&list).map_err(failed(&list))?;
        for line in text.lines() {
            let wrong = || Error::List(list.clone(), line.to_owned());
            let (digest, path) = line.split_once(' ').ok_or_else(wrong)?;
            if path != "." && below(path).is_err() {
                return Err(wrong());
            }
            if digest == "folder" {
                listed.folders.insert(path.to_owned());
            } else {
                listed.files.entry(path.to_owned()).or_default().insert(digest.to_owned());
            }
        }
        Ok(listed)
    }

    fn write(&self, prefix: &Path) -> Result<(), Error> {
        let files = self.files.iter().flat_map(|(file, digests)| {
            digests.iter().map(move |digest| format!("{digest} {file}\n"))
        });
        let folders = self.folders.iter().map(|folder| format!("folder {folder}\n"));
        let (list, new) = (prefix.join(LIST), prefix.join(format!("{LIST}.new")));
        std::fs::write(&new, files.chain(folders).collect::<String>()).map_err(failed(&new))?;
        std::fs::rename(&new, &list).map_err(failed(&list))
    }

    /// Removes a file if it is still as it was installed; returns whether it is gone.
    fn remove(&self, prefix: &Path, file: &str) -> Result<bool, Error> {
        let path = prefix.join(file);
        if std::fs::symlink_metadata(&path).is_err() {
            return Ok(true);
        }
        let own =
            self.files.get(file).is_some_and(|own| digest(&path).is_ok_and(|d| own.contains(&d)));
        if own {
            std::fs::remove_file(&path).map_err(failed(&path))?;
        }
        Ok(own)
    }
}

/// Returns a digest of a file, or of where a link leads.
fn digest(path: &Path) -> Result<String, Error> {
    if let Ok(target) = std::fs::read_link(path) {
        return Ok(format!("->{}", target.display()));
    }
    let bytes = std::fs::read(path).map_err(failed(path))?;
    Ok(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the files below a folder, in order, by their paths from there.
pub(crate) fn files_below(folder: &Path) -> Result<Vec<String>, Error> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(&at).map_err(failed(&at))? {
            let path = entry.map_err(failed(&at))?.path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else {
                let below = path.strip_prefix(folder).unwrap_or(&path);
                files.push(below.display().to_string());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Puts the files below a folder under a prefix. What an older installation has besides, and is as
/// it was, is removed; programs that use an old file keep it.
pub(crate) fn put(staged: &Path, prefix: &Path) -> Result<(), Error> {
    let old = Listed::read(prefix)?;
    let mut new = Listed { folders: old.folders.clone(), ..Listed::default() };
    for file in files_below(staged)? {
        let folders = Path::new(&file).ancestors().skip(1);
        let missing = folders.filter(|folder| !prefix.join(folder).exists());
        let name = |folder: &Path| match folder.as_os_str().is_empty() {
            true => ".".to_owned(),
            false => folder.display().to_string(),
        };
        new.folders.extend(missing.map(name));
        new.files.insert(file.clone(), BTreeSet::from([digest(&staged.join(&file))?]));
    }
    std::fs::create_dir_all(prefix).map_err(failed(prefix))?;
    // Whatever stops this from here on, the list has all that is there.
    let mut both = Listed { files: old.files.clone(), folders: new.folders.clone() };
    new.files.iter().for_each(|(file, digests)| {
        both.files.entry(file.clone()).or_default().extend(digests.iter().cloned());
    });
    both.write(prefix)?;
    // Before anything is put there: another path may lead to the same place.
    for file in old.files.keys().filter(|file| !new.files.contains_key(*file)) {
        old.remove(prefix, file)?;
    }
    for file in new.files.keys() {
        place(&staged.join(file), &prefix.join(file))?;
    }
    new.write(prefix)
}

/// Copies a file or a link to a place, which it takes at once.
fn place(from: &Path, to: &Path) -> Result<(), Error> {
    let folder = to.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let new: PathBuf = folder.join(format!(".{name}.oxccl-new"));
    // It may be left from an installation that was stopped.
    let _ = std::fs::remove_file(&new);
    match std::fs::read_link(from) {
        Ok(target) => std::os::unix::fs::symlink(target, &new).map_err(failed(&new))?,
        Err(_) => std::fs::copy(from, &new).map(drop).map_err(failed(&new))?,
    }
    std::fs::rename(&new, to).map_err(failed(to))
}

/// Removes what was put under a prefix, and is as it was; returns the files that are not, which
/// stay.
pub(crate) fn clear(prefix: &Path) -> Result<Vec<String>, Error> {
    let list = prefix.join(LIST);
    if !list.exists() {
        return Err(Error::NotInstalled(list));
    }
    let listed = Listed::read(prefix)?;
    let mut left = Vec::new();
    for file in listed.files.keys() {
        if !listed.remove(prefix, file)? {
            left.push(file.clone());
        }
    }
    std::fs::remove_file(&list).map_err(failed(&list))?;
    // The inner ones first; those in which something of others lies stay.
    for folder in listed.folders.iter().rev() {
        let _ = std::fs::remove_dir(prefix.join(folder));
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own for a test, which is removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("oxccl-prefix-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn write(&self, file: &str, text: &str) {
            let file = self.0.join(file);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            std::fs::write(file, text).expect("a file");
        }

        fn has(&self) -> Vec<String> {
            files_below(&self.0).expect("files")
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_installed_is_removed_and_nothing_else() {
        let (staged, prefix) = (Scratch::new("from"), Scratch::new("to"));
        for file in ["lib/a.so", "include/oxccl/a.h", "bin/ours", "share/man/changed"] {
            staged.write(file, file);
        }
        std::os::unix::fs::symlink("a.so", staged.0.join("lib/a")).expect("a link");
        prefix.write("bin/theirs", "");
        std::fs::create_dir_all(prefix.0.join("include")).expect("a folder");
        assert!(matches!(clear(&prefix.0), Err(Error::NotInstalled(_))));
        put(&staged.0, &prefix.0).expect("it is installed");
        assert_eq!(std::fs::read_to_string(prefix.0.join("lib/a")).expect("a file"), "lib/a.so");
        prefix.write("share/man/changed", "by someone");
        std::fs::remove_file(prefix.0.join("bin/ours")).expect("it is there");
        assert_eq!(clear(&prefix.0).expect("it is removed"), ["share/man/changed"]);
        assert_eq!(prefix.has(), ["bin/theirs", "share/man/changed"]);
        let (made, before) = (prefix.0.join("lib"), prefix.0.join("include"));
        assert!(!made.exists() && before.exists() && !before.join("oxccl").exists());
    }

    #[test]
    fn an_installation_takes_the_place_of_an_older_one() {
        let (first, second) = (Scratch::new("first"), Scratch::new("second"));
        let prefix = Scratch::new("replaced");
        for file in ["lib/a.so", "lib/nccl.so", "lib/same.h", "lib/theirs.so"] {
            first.write(file, "old");
        }
        second.write("lib64/a.so", "new");
        second.write("lib64/same.h", "old");
        put(&first.0, &prefix.0).expect("it is installed");
        prefix.write("lib/theirs.so", "of someone");
        // Another path to the same folder.
        std::os::unix::fs::symlink("lib", prefix.0.join("lib64")).expect("a link");
        put(&second.0, &prefix.0).expect("it is installed");
        let text = std::fs::read_to_string(prefix.0.join("lib/a.so")).expect("a file");
        assert_eq!(text, "new");
        assert_eq!(prefix.has(), [LIST, "lib/a.so", "lib/same.h", "lib/theirs.so", "lib64"]);
        assert!(clear(&prefix.0).expect("it is removed").is_empty());
        assert_eq!(prefix.has(), ["lib/theirs.so", "lib64"]);
    }

    #[test]
    fn a_list_that_names_what_lies_elsewhere_removes_nothing() {
        let prefix = Scratch::new("elsewhere");
        for wrong in ["x ../elsewhere", "x /etc/passwd", "nothing"] {
            prefix.write("bin/ours", "");
            prefix.write(LIST, &format!("->x bin/ours\n{wrong}\n"));
            let error = clear(&prefix.0).expect_err(wrong).to_string();
            assert!(error.contains(wrong) && prefix.0.join("bin/ours").exists(), "{error}");
        }
    }
}
