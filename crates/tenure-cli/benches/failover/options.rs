//! The options of the bench.

use tenure_rig::system::fault::Fault;
use tenure_rig::system::trial_store::StoreKind;

pub(crate) struct Options {
    pub(crate) repeats: usize,
    pub(crate) faults: Vec<Fault>,
    pub(crate) places: Vec<StoreKind>,
}

impl Options {
    pub(crate) fn read(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
        let faults = Fault::ALL.into_iter().filter(|fault| fault.is_public()).collect();
        let places = vec![StoreKind::File, StoreKind::Redis, StoreKind::Etcd];
        let mut options = Options { repeats: 50, faults, places };
        while let Some(word) = words.next() {
            // Added by cargo.
            if word == "--bench" {
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            let bad = || format!("{word} {value}: no such thing");
            match word.as_str() {
                "--repeats" => {
                    options.repeats = value.parse().ok().filter(|n| *n > 0).ok_or_else(bad)?;
                }
                "--fault" => {
                    let known = |name| Fault::ALL.into_iter().find(|fault| fault.name() == name);
                    let wanted = value.split(',').map(|name| known(name).ok_or_else(bad));
                    options.faults = wanted.collect::<Result<_, _>>()?;
                }
                "--store" => {
                    options.places = match value.as_str() {
                        "file" => vec![StoreKind::File],
                        "redis" => vec![StoreKind::Redis],
                        "etcd" => vec![StoreKind::Etcd],
                        _ => return Err(bad()),
                    };
                }
                _ => return Err(bad()),
            }
        }
        Ok(options)
    }
}
