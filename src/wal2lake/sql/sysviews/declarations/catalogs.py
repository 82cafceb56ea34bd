"""The columns of pg_catalog's tables, as PostgreSQL 18 declares them.

Comes in: nothing. Goes out: ``TABLES``, text that ``relations`` reads: a line ``name oid``, then
``column type`` pairs; ``!`` means NOT NULL. These OIDs are the same in every PostgreSQL 18.

Generated from pg_attribute of a server; a test compares it with one.
Source: src/include/catalog/*.h.
"""

from __future__ import annotations

from typing import Final

TABLES: Final = """
pg_aggregate 2600
    aggfnoid regproc!, aggkind char!, aggnumdirectargs int2!, aggtransfn regproc!, aggfinalfn
    regproc!, aggcombinefn regproc!, aggserialfn regproc!, aggdeserialfn regproc!, aggmtransfn
    regproc!, aggminvtransfn regproc!, aggmfinalfn regproc!, aggfinalextra bool!, aggmfinalextra
    bool!, aggfinalmodify char!, aggmfinalmodify char!, aggsortop oid!, aggtranstype oid!,
    aggtransspace int4!, aggmtranstype oid!, aggmtransspace int4!, agginitval text, aggminitval
    text
pg_am 2601
    oid oid!, amname name!, amhandler regproc!, amtype char!
pg_amop 2602
    oid oid!, amopfamily oid!, amoplefttype oid!, amoprighttype oid!, amopstrategy int2!,
    amoppurpose char!, amopopr oid!, amopmethod oid!, amopsortfamily oid!
pg_amproc 2603
    oid oid!, amprocfamily oid!, amproclefttype oid!, amprocrighttype oid!, amprocnum int2!,
    amproc regproc!
pg_attrdef 2604
    oid oid!, adrelid oid!, adnum int2!, adbin pg_node_tree!
pg_attribute 1249
    attrelid oid!, attname name!, atttypid oid!, attlen int2!, attnum int2!, atttypmod int4!,
    attndims int2!, attbyval bool!, attalign char!, attstorage char!, attcompression char!,
    attnotnull bool!, atthasdef bool!, atthasmissing bool!, attidentity char!, attgenerated
    char!, attisdropped bool!, attislocal bool!, attinhcount int2!, attcollation oid!,
    attstattarget int2, attacl _aclitem, attoptions _text, attfdwoptions _text, attmissingval
    anyarray
pg_auth_members 1261
    oid oid!, roleid oid!, member oid!, grantor oid!, admin_option bool!, inherit_option bool!,
    set_option bool!
pg_authid 1260
    oid oid!, rolname name!, rolsuper bool!, rolinherit bool!, rolcreaterole bool!, rolcreatedb
    bool!, rolcanlogin bool!, rolreplication bool!, rolbypassrls bool!, rolconnlimit int4!,
    rolpassword text, rolvaliduntil timestamptz
pg_cast 2605
    oid oid!, castsource oid!, casttarget oid!, castfunc oid!, castcontext char!, castmethod
    char!
pg_class 1259
    oid oid!, relname name!, relnamespace oid!, reltype oid!, reloftype oid!, relowner oid!,
    relam oid!, relfilenode oid!, reltablespace oid!, relpages int4!, reltuples float4!,
    relallvisible int4!, relallfrozen int4!, reltoastrelid oid!, relhasindex bool!, relisshared
    bool!, relpersistence char!, relkind char!, relnatts int2!, relchecks int2!, relhasrules
    bool!, relhastriggers bool!, relhassubclass bool!, relrowsecurity bool!, relforcerowsecurity
    bool!, relispopulated bool!, relreplident char!, relispartition bool!, relrewrite oid!,
    relfrozenxid xid!, relminmxid xid!, relacl _aclitem, reloptions _text, relpartbound
    pg_node_tree
pg_collation 3456
    oid oid!, collname name!, collnamespace oid!, collowner oid!, collprovider char!,
    collisdeterministic bool!, collencoding int4!, collcollate text, collctype text, colllocale
    text, collicurules text, collversion text
pg_constraint 2606
    oid oid!, conname name!, connamespace oid!, contype char!, condeferrable bool!, condeferred
    bool!, conenforced bool!, convalidated bool!, conrelid oid!, contypid oid!, conindid oid!,
    conparentid oid!, confrelid oid!, confupdtype char!, confdeltype char!, confmatchtype char!,
    conislocal bool!, coninhcount int2!, connoinherit bool!, conperiod bool!, conkey _int2,
    confkey _int2, conpfeqop _oid, conppeqop _oid, conffeqop _oid, confdelsetcols _int2,
    conexclop _oid, conbin pg_node_tree
pg_conversion 2607
    oid oid!, conname name!, connamespace oid!, conowner oid!, conforencoding int4!,
    contoencoding int4!, conproc regproc!, condefault bool!
pg_database 1262
    oid oid!, datname name!, datdba oid!, encoding int4!, datlocprovider char!, datistemplate
    bool!, datallowconn bool!, dathasloginevt bool!, datconnlimit int4!, datfrozenxid xid!,
    datminmxid xid!, dattablespace oid!, datcollate text!, datctype text!, datlocale text,
    daticurules text, datcollversion text, datacl _aclitem
pg_db_role_setting 2964
    setdatabase oid!, setrole oid!, setconfig _text
pg_default_acl 826
    oid oid!, defaclrole oid!, defaclnamespace oid!, defaclobjtype char!, defaclacl _aclitem!
pg_depend 2608
    classid oid!, objid oid!, objsubid int4!, refclassid oid!, refobjid oid!, refobjsubid int4!,
    deptype char!
pg_description 2609
    objoid oid!, classoid oid!, objsubid int4!, description text!
pg_enum 3501
    oid oid!, enumtypid oid!, enumsortorder float4!, enumlabel name!
pg_event_trigger 3466
    oid oid!, evtname name!, evtevent name!, evtowner oid!, evtfoid oid!, evtenabled char!,
    evttags _text
pg_extension 3079
    oid oid!, extname name!, extowner oid!, extnamespace oid!, extrelocatable bool!, extversion
    text!, extconfig _oid, extcondition _text
pg_foreign_data_wrapper 2328
    oid oid!, fdwname name!, fdwowner oid!, fdwhandler oid!, fdwvalidator oid!, fdwacl _aclitem,
    fdwoptions _text
pg_foreign_server 1417
    oid oid!, srvname name!, srvowner oid!, srvfdw oid!, srvtype text, srvversion text, srvacl
    _aclitem, srvoptions _text
pg_foreign_table 3118
    ftrelid oid!, ftserver oid!, ftoptions _text
pg_index 2610
    indexrelid oid!, indrelid oid!, indnatts int2!, indnkeyatts int2!, indisunique bool!,
    indnullsnotdistinct bool!, indisprimary bool!, indisexclusion bool!, indimmediate bool!,
    indisclustered bool!, indisvalid bool!, indcheckxmin bool!, indisready bool!, indislive
    bool!, indisreplident bool!, indkey int2vector!, indcollation oidvector!, indclass
    oidvector!, indoption int2vector!, indexprs pg_node_tree, indpred pg_node_tree
pg_inherits 2611
    inhrelid oid!, inhparent oid!, inhseqno int4!, inhdetachpending bool!
pg_language 2612
    oid oid!, lanname name!, lanowner oid!, lanispl bool!, lanpltrusted bool!, lanplcallfoid
    oid!, laninline oid!, lanvalidator oid!, lanacl _aclitem
pg_largeobject_metadata 2995
    oid oid!, lomowner oid!, lomacl _aclitem
pg_namespace 2615
    oid oid!, nspname name!, nspowner oid!, nspacl _aclitem
pg_opclass 2616
    oid oid!, opcmethod oid!, opcname name!, opcnamespace oid!, opcowner oid!, opcfamily oid!,
    opcintype oid!, opcdefault bool!, opckeytype oid!
pg_operator 2617
    oid oid!, oprname name!, oprnamespace oid!, oprowner oid!, oprkind char!, oprcanmerge bool!,
    oprcanhash bool!, oprleft oid!, oprright oid!, oprresult oid!, oprcom oid!, oprnegate oid!,
    oprcode regproc!, oprrest regproc!, oprjoin regproc!
pg_opfamily 2753
    oid oid!, opfmethod oid!, opfname name!, opfnamespace oid!, opfowner oid!
pg_partitioned_table 3350
    partrelid oid!, partstrat char!, partnatts int2!, partdefid oid!, partattrs int2vector!,
    partclass oidvector!, partcollation oidvector!, partexprs pg_node_tree
pg_policy 3256
    oid oid!, polname name!, polrelid oid!, polcmd char!, polpermissive bool!, polroles _oid!,
    polqual pg_node_tree, polwithcheck pg_node_tree
pg_proc 1255
    oid oid!, proname name!, pronamespace oid!, proowner oid!, prolang oid!, procost float4!,
    prorows float4!, provariadic oid!, prosupport regproc!, prokind char!, prosecdef bool!,
    proleakproof bool!, proisstrict bool!, proretset bool!, provolatile char!, proparallel
    char!, pronargs int2!, pronargdefaults int2!, prorettype oid!, proargtypes oidvector!,
    proallargtypes _oid, proargmodes _char, proargnames _text, proargdefaults pg_node_tree,
    protrftypes _oid, prosrc text!, probin text, prosqlbody pg_node_tree, proconfig _text,
    proacl _aclitem
pg_publication 6104
    oid oid!, pubname name!, pubowner oid!, puballtables bool!, pubinsert bool!, pubupdate
    bool!, pubdelete bool!, pubtruncate bool!, pubviaroot bool!, pubgencols char!
pg_publication_namespace 6237
    oid oid!, pnpubid oid!, pnnspid oid!
pg_publication_rel 6106
    oid oid!, prpubid oid!, prrelid oid!, prqual pg_node_tree, prattrs int2vector
pg_range 3541
    rngtypid oid!, rngsubtype oid!, rngmultitypid oid!, rngcollation oid!, rngsubopc oid!,
    rngcanonical regproc!, rngsubdiff regproc!
pg_replication_origin 6000
    roident oid!, roname text!
pg_rewrite 2618
    oid oid!, rulename name!, ev_class oid!, ev_type char!, ev_enabled char!, is_instead bool!,
    ev_qual pg_node_tree!, ev_action pg_node_tree!
pg_sequence 2224
    seqrelid oid!, seqtypid oid!, seqstart int8!, seqincrement int8!, seqmax int8!, seqmin
    int8!, seqcache int8!, seqcycle bool!
pg_shdepend 1214
    dbid oid!, classid oid!, objid oid!, objsubid int4!, refclassid oid!, refobjid oid!, deptype
    char!
pg_shdescription 2396
    objoid oid!, classoid oid!, description text!
pg_statistic_ext 3381
    oid oid!, stxrelid oid!, stxname name!, stxnamespace oid!, stxowner oid!, stxkeys
    int2vector!, stxstattarget int2, stxkind _char!, stxexprs pg_node_tree
pg_subscription 6100
    oid oid!, subdbid oid!, subskiplsn pg_lsn!, subname name!, subowner oid!, subenabled bool!,
    subbinary bool!, substream char!, subtwophasestate char!, subdisableonerr bool!,
    subpasswordrequired bool!, subrunasowner bool!, subfailover bool!, subconninfo text!,
    subslotname name, subsynccommit text!, subpublications _text!, suborigin text
pg_subscription_rel 6102
    srsubid oid!, srrelid oid!, srsubstate char!, srsublsn pg_lsn
pg_tablespace 1213
    oid oid!, spcname name!, spcowner oid!, spcacl _aclitem, spcoptions _text
pg_transform 3576
    oid oid!, trftype oid!, trflang oid!, trffromsql regproc!, trftosql regproc!
pg_trigger 2620
    oid oid!, tgrelid oid!, tgparentid oid!, tgname name!, tgfoid oid!, tgtype int2!, tgenabled
    char!, tgisinternal bool!, tgconstrrelid oid!, tgconstrindid oid!, tgconstraint oid!,
    tgdeferrable bool!, tginitdeferred bool!, tgnargs int2!, tgattr int2vector!, tgargs bytea!,
    tgqual pg_node_tree, tgoldtable name, tgnewtable name
pg_ts_config 3602
    oid oid!, cfgname name!, cfgnamespace oid!, cfgowner oid!, cfgparser oid!
pg_ts_config_map 3603
    mapcfg oid!, maptokentype int4!, mapseqno int4!, mapdict oid!
pg_ts_dict 3600
    oid oid!, dictname name!, dictnamespace oid!, dictowner oid!, dicttemplate oid!,
    dictinitoption text
pg_ts_parser 3601
    oid oid!, prsname name!, prsnamespace oid!, prsstart regproc!, prstoken regproc!, prsend
    regproc!, prsheadline regproc!, prslextype regproc!
pg_ts_template 3764
    oid oid!, tmplname name!, tmplnamespace oid!, tmplinit regproc!, tmpllexize regproc!
pg_type 1247
    oid oid!, typname name!, typnamespace oid!, typowner oid!, typlen int2!, typbyval bool!,
    typtype char!, typcategory char!, typispreferred bool!, typisdefined bool!, typdelim char!,
    typrelid oid!, typsubscript regproc!, typelem oid!, typarray oid!, typinput regproc!,
    typoutput regproc!, typreceive regproc!, typsend regproc!, typmodin regproc!, typmodout
    regproc!, typanalyze regproc!, typalign char!, typstorage char!, typnotnull bool!,
    typbasetype oid!, typtypmod int4!, typndims int4!, typcollation oid!, typdefaultbin
    pg_node_tree, typdefault text, typacl _aclitem
pg_user_mapping 1418
    oid oid!, umuser oid!, umserver oid!, umoptions _text
"""
