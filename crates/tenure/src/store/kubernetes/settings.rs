//! The URL of the store and the configuration of the Kubernetes client.

use std::fmt;
use std::time::Duration;

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::error::{Error, Result};
use crate::store::endpoint::StoreUrl;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a handle needs to connect.
pub(super) struct KubernetesSettings {
    pub(super) namespace: String,
    pub(super) config: Config,
    url: String,
}

/// Without the configuration, which may contain secrets.
impl fmt::Debug for KubernetesSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl KubernetesSettings {
    pub(super) async fn load(url: &StoreUrl<'_>) -> Result<Self> {
        let options = url.options(&["context", "kubeconfig"])?;
        let namespace = url.rest.strip_prefix("//").unwrap_or_default();
        if !is_label(namespace) {
            return Err(Error::invalid(format!(
                "'kubernetes:{}' names no namespace: write kubernetes://NAMESPACE, in lower case",
                url.rest.escape_debug()
            )));
        }
        let (context, path) = (options.filled_text("context")?, options.filled_text("kubeconfig")?);
        let mut shown = format!("kubernetes://{namespace}");
        for (separator, key, value) in [("?", "context", &context), ("&", "kubeconfig", &path)] {
            if let Some(value) = value {
                let separator = if shown.contains('?') { separator } else { "?" };
                shown.push_str(&format!("{separator}{key}={value}"));
            }
        }
        let mut config = load_config(context, path).await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // A write is never repeated behind its caller's back.
        config.default_retry = false;
        Ok(KubernetesSettings { namespace: namespace.to_owned(), config, url: shown })
    }

    pub(super) fn url(&self) -> String {
        self.url.clone()
    }

    /// The address of the API server, for messages.
    pub(super) fn server(&self) -> String {
        self.config.cluster_url.authority().map_or_else(String::new, |authority| {
            // A user and password before '@' are not shown.
            let text = authority.as_str();
            text.rsplit_once('@').map_or(text, |(_, host)| host).to_owned()
        })
    }
}

async fn load_config(context: Option<String>, path: Option<String>) -> Result<Config> {
    let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    if path.is_none() && context.is_none() {
        return Config::infer().await.map_err(|error| {
            Error::invalid(format!(
                "there is neither a kubeconfig nor the service account of a pod: {error}. Set KUBECONFIG, or the option \
                 kubeconfig of the store's URL"
            ))
        });
    }
    let loaded = match &path {
        None => Config::from_kubeconfig(&options).await,
        Some(path) => match Kubeconfig::read_from(path) {
            Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options).await,
            Err(error) => Err(error),
        },
    };
    loaded.map_err(|error| {
        let file = path.map_or_else(|| "the kubeconfig".to_owned(), |path| format!("'{path}'"));
        Error::invalid(format!("{file} cannot be used: {error}"))
    })
}

/// Whether the text is a DNS-1123 label, as the name of a namespace is.
fn is_label(text: &str) -> bool {
    let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.first().is_some_and(is_alphanumeric)
        && bytes.last().is_some_and(is_alphanumeric)
        && bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
}
