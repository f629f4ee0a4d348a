//! Configuration of one host: defaults, the image's, the Clusterfile's, then mandatory values.
//!
//! Values in, documents out. Must not depend on hosts or the disk.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};

use crate::certificates::authority::{Algorithm, canonical};
use crate::certificates::{control_plane::Member, validity::Validity};
use crate::kubeadm::documents::{Documents, at, set};
use crate::kubeadm::host_state::{HostState, unix, variable};
use crate::kubeadm::{defaults, write};
use crate::{kubeadm::version::Version, load_balancer::API_PORT};
use imgctl_base::address::join_port;
use imgctl_base::error::{Context, Error, Result};
use imgctl_model::context::{ClusterContext, Host};

/// Name that hosts use to reach the API.
pub const API_NAME: &str = "apiserver.cluster.local";

const CGROUPS: &str = "boot it with systemd.unified_cgroup_hierarchy=1, or set failCgroupV1: false in a \
KubeletConfiguration of the Clusterfile";
const CGROUPS_OF_CLUSTER: &str = "boot it with systemd.unified_cgroup_hierarchy=1, or set failCgroupV1: \
false in a KubeletConfiguration of the Clusterfile and run `imgctl apply` before the host joins: kubeadm \
takes the configuration from the ConfigMap kube-system/kubelet-config";

/// Returns the LVScare image, if the rootfs image names one. Workers of an adopted cluster reach
/// the API in their own way.
pub(crate) fn lvscare_image(context: &ClusterContext) -> Option<&str> {
    context.rootfs().filter(|_| !context.is_adopted())?.label(&["image"])
}

/// Returns whether workers have load balancers of imgctl, which can be told about API servers.
pub(super) fn has_balancers(context: &ClusterContext) -> bool {
    lvscare_image(context).is_none() && !context.is_adopted()
}

/// Inputs of a configuration besides the cluster context.
pub(super) struct Inputs<'a> {
    pub version: &'a Version,
    /// The image's `etc/kubeadm.yml`.
    pub image: Option<&'a str>,
    /// The KubeletConfiguration of a backup, with what was changed in the cluster itself.
    pub kubelet: Option<&'a Value>,
    /// Names added by `imgctl cert --alt-names`.
    pub alt_names: &'a [String],
    pub validity: Validity,
}

#[derive(Clone, Debug)]
pub(super) struct Config {
    pub version: Version,
    documents: Documents,
    address: String,
    port: u16,
}

impl Config {
    pub(super) fn build(
        context: &ClusterContext,
        host: &Host,
        state: &HostState,
        inputs: &Inputs<'_>,
    ) -> Result<Self> {
        let version = inputs.version;
        let mut documents = if context.is_adopted() {
            // The cluster's own documents are complete.
            defaults::of_kubeadm()
        } else {
            defaults::documents(version, state.ipvs && lvscare_image(context).is_some())
        };
        if let Some(text) = inputs.image.filter(|_| !context.is_adopted()) {
            let image = Documents::read(text)
                .context(|| "cannot use etc/kubeadm.yml of the rootfs image".to_owned())?;
            documents.lay(image);
        }
        if let Some(kubelet) = inputs.kubelet {
            let kept = Documents::collect(std::slice::from_ref(kubelet))
                .context(|| "cannot use the KubeletConfiguration of the backup".to_owned())?;
            documents.lay(kept);
        }
        let users = Documents::collect(&context.documents)
            .context(|| "cannot use the kubeadm documents of the Clusterfile".to_owned())?;
        documents.lay(users);
        if context.is_adopted() {
            force_adopted(&mut documents, host, state, inputs)?;
        } else {
            force(&mut documents, context, host, state, inputs)?;
        }
        defaults::fit(&mut documents, version);
        let port = at(&documents.init, &["localAPIEndpoint", "bindPort"]).as_u64();
        let config = Self {
            version: version.clone(),
            port: port.and_then(|port| u16::try_from(port).ok()).unwrap_or(API_PORT),
            documents,
            address: state.address(host),
        };
        // Whatever the addresses of an adopted cluster are, it works with them.
        if !context.is_adopted() {
            config.check_addresses(context)?;
        }
        Ok(config)
    }

    pub(super) fn documents(&self) -> &Documents {
        &self.documents
    }

    /// Returns Init-, Cluster-, Kubelet- and KubeProxyConfiguration.
    pub(crate) fn init_text(&self) -> Result<String> {
        write::init(&self.documents, &self.version)
    }

    /// Returns ClusterConfiguration alone, for `upload-config`.
    pub(crate) fn cluster_text(&self) -> Result<String> {
        write::cluster(&self.documents, &self.version)
    }

    /// Returns JoinConfiguration. `endpoint` is `address:port` of a control plane that responds.
    pub(crate) fn join_text(
        &self,
        control_plane: bool,
        endpoint: &str,
        token: &str,
        pin: &str,
    ) -> Result<String> {
        let mut join = self.documents.join.clone();
        set(
            &mut join,
            &["discovery", "bootstrapToken"],
            json!({
                "apiServerEndpoint": endpoint,
                "token": token,
                "caCertHashes": [pin],
            }),
        )?;
        if !control_plane && let Some(fields) = join.as_object_mut() {
            fields.shift_remove("controlPlane");
        }
        write::join(&join, &self.version)
    }

    /// Returns JoinConfiguration without the values that are known only when a host joins.
    pub(crate) fn join_defaults(&self) -> Result<String> {
        write::join(&self.documents.join, &self.version)
    }

    pub(crate) fn algorithm(&self) -> Result<Algorithm> {
        match self.documents.cluster["encryptionAlgorithm"].as_str() {
            Some(text) => Algorithm::parse(text),
            None => Ok(Algorithm::default()),
        }
    }

    /// Reports whether etcd runs on the control planes.
    pub(crate) fn has_local_etcd(&self) -> bool {
        !at(&self.documents.cluster, &["etcd", "external"]).is_object()
    }

    pub(crate) fn etcd_data(&self) -> &str {
        at(&self.documents.cluster, &["etcd", "local", "dataDir"])
            .as_str()
            .unwrap_or("/var/lib/etcd")
    }

    /// Reports whether the API server's audit policy is the file that imgctl provides.
    pub(crate) fn wants_audit_policy(&self) -> bool {
        let arguments = at(&self.documents.cluster, &["apiServer", "extraArgs"]).as_array();
        arguments.is_some_and(|list| {
            list.iter().any(|argument| {
                argument["name"] == "audit-policy-file"
                    && argument["value"] == defaults::AUDIT_POLICY
            })
        })
    }

    /// Checks that the kubelet supports this host's cgroup version. `written`: the KubeletConfiguration
    /// that kubeadm takes from the cluster which the host joins.
    pub(crate) fn check_cgroups(
        &self,
        cgroup_v2: bool,
        host: &str,
        written: Option<&Value>,
    ) -> Result<()> {
        let kubelet = written.unwrap_or(&self.documents.kubelet);
        if !self.refuses_cgroups(cgroup_v2) || kubelet["failCgroupV1"] == Value::Bool(false) {
            return Ok(());
        }
        Err(Error::failed(format!(
            "{host}: it uses control groups v1, which the kubelet of {} rejects",
            self.version.text
        ))
        .hint(match written {
            Some(_) => CGROUPS_OF_CLUSTER,
            None => CGROUPS,
        }))
    }

    /// Whether the kubelet does not start on such a host unless it is told to.
    pub(crate) fn refuses_cgroups(&self, cgroup_v2: bool) -> bool {
        !cgroup_v2 && self.version.minor >= 35
    }

    /// Returns the Node's name: `nodeRegistration.name`, or the hostname.
    pub(crate) fn node_name(&self, first: bool, hostname: &str) -> String {
        let document = if first { &self.documents.init } else { &self.documents.join };
        at(document, &["nodeRegistration", "name"])
            .as_str()
            .map_or_else(|| hostname.to_lowercase(), str::to_owned)
    }

    /// Returns the endpoint that all control planes share, if there is one.
    pub(crate) fn shared_endpoint(&self) -> Option<&str> {
        let endpoint = self.documents.cluster["controlPlaneEndpoint"].as_str();
        endpoint.filter(|endpoint| !endpoint.is_empty())
    }

    /// Has kubeadm leave kube-proxy and CoreDNS as they are in restored data, with what was changed in
    /// them. Without a shared endpoint, kube-proxy's configuration names an address and is written again.
    pub(crate) fn keeping_addons(mut self) -> Result<Self> {
        if self.shared_endpoint().is_some() {
            let skipped = self.documents.init["skipPhases"].as_array();
            let mut skipped = skipped.cloned().unwrap_or_default();
            skipped.push("addon".into());
            set(&mut self.documents.init, &["skipPhases"], skipped.into())?;
        }
        Ok(self)
    }

    /// Returns `address:port` of this host's API server.
    pub(crate) fn endpoint(&self) -> String {
        join_port(&self.address, self.port)
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the values that this control plane's certificates depend on.
    pub(super) fn member(&self, first: bool, hostname: &str) -> Result<Member> {
        let cluster = &self.documents.cluster;
        let names = |path: &[&str]| -> Vec<String> {
            let list = at(cluster, path).as_array().map_or(&[][..], Vec::as_slice);
            list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let services = at(cluster, &["networking", "serviceSubnet"]);
        let service_addresses = services
            .as_str()
            .unwrap_or_default()
            .split(',')
            .map(|subnet| Subnet::parse(subnet).map(|subnet| subnet.first_host().to_string()))
            .collect::<Result<_>>()?;
        let endpoint = cluster["controlPlaneEndpoint"].as_str();
        Ok(Member {
            minor: self.version.minor,
            node_name: self.node_name(first, hostname),
            address: self.address.clone(),
            api_port: self.port,
            endpoint: endpoint.map_or_else(|| self.endpoint(), str::to_owned),
            dns_domain: at(cluster, &["networking", "dnsDomain"])
                .as_str()
                .unwrap_or("cluster.local")
                .to_owned(),
            service_addresses,
            api_names: names(&["apiServer", "certSANs"]),
            etcd: self.has_local_etcd().then(|| {
                (
                    names(&["etcd", "local", "serverCertSANs"]),
                    names(&["etcd", "local", "peerCertSANs"]),
                )
            }),
        })
    }

    /// Checks that the addresses of the virtual address, hosts, Pods and Services do not overlap.
    fn check_addresses(&self, context: &ClusterContext) -> Result<()> {
        let networking = &self.documents.cluster["networking"];
        let subnets = |field: &str| -> Result<Vec<Subnet>> {
            let list = networking[field].as_str().unwrap_or_default();
            list.split(',')
                .map(str::trim)
                .filter(|subnet| !subnet.is_empty())
                .map(|subnet| Subnet::parse(subnet).context(|| format!("networking.{field}")))
                .collect()
        };
        let (pods, services) = (subnets("podSubnet")?, subnets("serviceSubnet")?);
        let hint = "set networking.podSubnet and serviceSubnet in a ClusterConfiguration of the Clusterfile";
        for pod in &pods {
            if let Some(service) = services.iter().find(|service| service.overlaps(pod)) {
                return Err(Error::usage(format!(
                    "the subnets of Pods ({pod}) and Services ({service}) overlap"
                ))
                .hint(hint));
            }
        }
        let vip = context.vip.as_deref().map(|vip| ("the virtual address", vip));
        let hosts = context.hosts.iter().map(|host| ("host", host.ip()));
        for (what, address) in vip.into_iter().chain(hosts) {
            let Ok(parsed) = address.parse::<IpAddr>() else {
                continue;
            };
            let inside = |list: &[Subnet]| list.iter().find(|subnet| subnet.holds(parsed)).copied();
            let found = inside(&pods)
                .map(|subnet| ("Pods", subnet))
                .or_else(|| inside(&services).map(|subnet| ("Services", subnet)));
            if let Some((kind, subnet)) = found {
                return Err(Error::usage(format!(
                    "{what} {address} is in the subnet of {kind} {subnet}"
                ))
                .hint(hint));
            }
        }
        Ok(())
    }
}

/// Sets the values that documents cannot change.
fn force(
    documents: &mut Documents,
    context: &ClusterContext,
    host: &Host,
    state: &HostState,
    inputs: &Inputs<'_>,
) -> Result<()> {
    let version = inputs.version;
    let address = state.address(host);
    let Documents { init, cluster, join, kubelet, proxy } = documents;

    set(init, &["localAPIEndpoint", "advertiseAddress"], address.as_str().into())?;
    let endpoint = ["controlPlane", "localAPIEndpoint", "advertiseAddress"];
    set(join, &endpoint, address.as_str().into())?;
    let port = at(init, &["localAPIEndpoint", "bindPort"]).clone();
    let image_endpoint = variable(context, host, "SEALOS_SYS_IMAGE_ENDPOINT").map(unix);
    let alone = context.hosts.len() == 1;
    for document in [&mut *init, &mut *join] {
        let registration = |field: &'static str| ["nodeRegistration", field];
        set(document, &registration("criSocket"), state.cri_socket.as_str().into())?;
        set(document, &registration("imagePullPolicy"), "Never".into())?;
        if alone && at(document, &registration("taints")).is_null() {
            set(document, &registration("taints"), json!([]))?;
        }
        let mut arguments = vec![("node-ip", address.as_str())];
        // KubeletConfiguration has a field for this since 1.27.
        if let (true, Some(endpoint)) = (version.minor < 27, &image_endpoint) {
            arguments.push(("image-service-endpoint", endpoint));
        }
        let over =
            json!({"nodeRegistration": {"kubeletExtraArgs": defaults::arguments(&arguments)}});
        super::documents::merge(document, over);
    }

    set(cluster, &["kubernetesVersion"], version.text.as_str().into())?;
    let port = port.as_u64().unwrap_or(u64::from(API_PORT));
    set(cluster, &["controlPlaneEndpoint"], format!("{API_NAME}:{port}").into())?;
    let mut names: Vec<String> = vec!["127.0.0.1".to_owned(), API_NAME.to_owned()];
    names.extend(context.vip.clone());
    names.extend(context.control_planes().map(|host| host.ip().to_owned()));
    if !names.contains(&address) && host.is_control_plane() {
        names.push(address);
    }
    let listed = at(cluster, &["apiServer", "certSANs"]).as_array();
    let listed = listed.map_or(&[][..], Vec::as_slice);
    names.extend(listed.iter().filter_map(Value::as_str).map(str::to_owned));
    names.extend(inputs.alt_names.iter().cloned());
    let mut unique: Vec<String> = Vec::new();
    for name in names.iter().map(|name| canonical(name)) {
        if !unique.contains(&name) {
            unique.push(name);
        }
    }
    set(cluster, &["apiServer", "certSANs"], unique.into())?;

    let authorities = Validity::hours(inputs.validity.authorities);
    let leaves = Validity::hours(inputs.validity.leaves);
    for (field, value) in
        [("certificateValidityPeriod", &leaves), ("caCertificateValidityPeriod", &authorities)]
    {
        if cluster[field].is_null() {
            set(cluster, &[field], value.as_str().into())?;
        }
    }
    // Kubelet certificates signed by the controller manager get the same validity as those that
    // imgctl signs.
    let signing = at(cluster, &["controllerManager", "extraArgs"]).as_array();
    let set_by_hand = signing.is_some_and(|list| {
        let named = |entry: &Value| entry["name"] == "cluster-signing-duration";
        list.iter().any(named)
    });
    if !set_by_hand {
        let argument = defaults::arguments(&[("cluster-signing-duration", &leaves)]);
        super::documents::merge(cluster, json!({"controllerManager": {"extraArgs": argument}}));
    }
    // etcd is either local or external, not both.
    if at(cluster, &["etcd", "external"]).is_object()
        && let Some(etcd) = cluster.get_mut("etcd").and_then(Value::as_object_mut)
    {
        etcd.shift_remove("local");
    }
    if !state.local_time {
        drop_local_time(cluster);
    }

    let domain = at(cluster, &["networking", "dnsDomain"]).clone();
    if kubelet["clusterDomain"].is_null() {
        set(kubelet, &["clusterDomain"], domain)?;
    }
    set(kubelet, &["cgroupDriver"], state.cgroup_driver.as_str().into())?;
    set(kubelet, &["containerRuntimeEndpoint"], state.cri_socket.as_str().into())?;
    if let Some(endpoint) = image_endpoint {
        set(kubelet, &["imageServiceEndpoint"], endpoint.into())?;
    }
    if let (Some(vip), "ipvs") = (&context.vip, proxy["mode"].as_str().unwrap_or_default()) {
        let bits = if vip.contains(':') { 128 } else { 32 };
        super::documents::merge(
            proxy,
            json!({"ipvs": {"excludeCIDRs": [format!("{vip}/{bits}")]}}),
        );
    }
    Ok(())
}

/// Sets what depends on the host and on the new version. All other settings of an adopted cluster
/// stay as they are, its API endpoint first of all.
fn force_adopted(
    documents: &mut Documents,
    host: &Host,
    state: &HostState,
    inputs: &Inputs<'_>,
) -> Result<()> {
    let Documents { init, cluster, join, .. } = documents;
    let address = state.address(host);
    set(init, &["localAPIEndpoint", "advertiseAddress"], address.as_str().into())?;
    let endpoint = ["controlPlane", "localAPIEndpoint", "advertiseAddress"];
    set(join, &endpoint, address.as_str().into())?;
    for document in [&mut *init, &mut *join] {
        set(document, &["nodeRegistration", "criSocket"], state.cri_socket.as_str().into())?;
    }
    set(cluster, &["kubernetesVersion"], inputs.version.text.as_str().into())?;
    if !inputs.alt_names.is_empty() {
        let names: Value = inputs.alt_names.iter().map(|name| Value::from(name.as_str())).collect();
        super::documents::merge(cluster, json!({"apiServer": {"certSANs": names}}));
    }
    Ok(())
}

/// Removes the volume of `/etc/localtime`: a host without that file uses UTC, and the volume would
/// prevent the Pod from starting.
fn drop_local_time(cluster: &mut Value) {
    for component in ["apiServer", "controllerManager", "scheduler"] {
        let component = cluster.get_mut(component);
        let volumes = component.and_then(|component| component.get_mut("extraVolumes"));
        if let Some(list) = volumes.and_then(Value::as_array_mut) {
            list.retain(|volume| volume["hostPath"] != "/etc/localtime");
        }
    }
}

/// A subnet such as `10.96.0.0/22`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subnet {
    network: IpAddr,
    bits: u8,
}

impl Subnet {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!("`{text}` is not a subnet"))
                .hint("a subnet looks like 10.96.0.0/22")
        };
        let (address, bits) = text.trim().split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits: u8 = bits.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if bits > most {
            return Err(wrong());
        }
        Ok(Self { network: masked(address, bits), bits })
    }

    pub(super) fn holds(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.network.is_ipv4() && masked(address, self.bits) == self.network
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.holds(other.network) || other.holds(self.network)
    }

    /// Returns the address after the network's own; Kubernetes assigns it to the API's Service.
    pub(crate) fn first_host(&self) -> IpAddr {
        match self.network {
            IpAddr::V4(address) => Ipv4Addr::from(u32::from(address).wrapping_add(1)).into(),
            IpAddr::V6(address) => Ipv6Addr::from(u128::from(address).wrapping_add(1)).into(),
        }
    }
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            Ipv4Addr::from(u32::from(address) & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            Ipv6Addr::from(u128::from(address) & mask).into()
        }
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.network, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnets() {
        let subnet = Subnet::parse("10.96.3.7/22").unwrap();
        assert_eq!(subnet.to_string(), "10.96.0.0/22");
        assert_eq!(subnet.first_host().to_string(), "10.96.0.1");
        assert!(subnet.holds("10.96.3.255".parse().unwrap()));
        assert!(!subnet.holds("10.96.4.0".parse().unwrap()));
        assert!(!subnet.holds("::1".parse().unwrap()));
        assert!(subnet.overlaps(&Subnet::parse("10.0.0.0/8").unwrap()));
        assert!(!subnet.overlaps(&Subnet::parse("100.64.0.0/10").unwrap()));
        assert_eq!(Subnet::parse("fd00::/108").unwrap().first_host().to_string(), "fd00::1");
        assert!(Subnet::parse("0.0.0.0/0").unwrap().holds("1.2.3.4".parse().unwrap()));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "x/8", "10.0.0.0/-1"] {
            assert!(Subnet::parse(wrong).is_err(), "{wrong}");
        }
    }
}
