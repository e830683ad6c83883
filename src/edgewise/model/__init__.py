"""The eSCN-MD network: parameters and their order. It calls ops only and never names what implements them."""
