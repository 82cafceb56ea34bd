#!/bin/sh
# Makes a key and a certificate that it signs itself, unless the folder has one.
#
#     certificate.sh FOLDER [GROUP]    GROUP may read the key (10001: the image's user)
set -eu
cd "$1"
group=${2:-10001}
if [ -e server.crt ]; then
    exit 0
fi
umask 077
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 825 \
    -subj /CN=wal2lake -addext "subjectAltName=DNS:wal2lake,DNS:localhost" \
    -keyout server.key -out server.crt.new
chgrp "$group" server.key
chmod 0640 server.key
chmod 0644 server.crt.new
# The certificate's name is the sign that both are whole.
mv server.crt.new server.crt
